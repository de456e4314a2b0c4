"""Checks what you save: `make watch` runs style, words and the unit tests of a package after each change of its files.

A change of `rstar2_train/rollout/agent.py` runs ruff and the language rules on that file, then its tests in
`tests/unit/rollout`; a change of a test runs that test file. Ctrl-C ends it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import watchfiles

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("rstar2_train", "operator", "tests", "bench", "scripts", "docs")
BIN = Path(sys.executable).parent


def unit_tests(path: str) -> str:
    """Return the test file or folder that checks a file of the repository; empty if there is none.

    A module is checked by the tests of its package: `tests/unit/PACKAGE`, or the file of the module if it has one.
    """
    parts = Path(path).parts
    if parts[0] == "tests":
        return path if Path(path).name.startswith("test_") and parts[1] in ("unit", "language") else ""
    if not path.endswith(".py"):
        return "tests/unit/docs" if parts[0] == "docs" else ""
    folder = Path("tests", "unit", parts[1] if parts[0] == "rstar2_train" else parts[0])
    own = folder / f"test_{Path(path).stem}.py"
    return str(next((item for item in (own, folder) if (ROOT / item).exists()), ""))


def commands(changed: Iterable[str]) -> list[list[str]]:
    """Return the commands that check the changed files, fastest first."""
    files = sorted(changed)
    python = [path for path in files if path.endswith(".py")]
    tests = sorted({test for path in files if (test := unit_tests(path))})
    result = []
    if python:
        result += [[f"{BIN}/ruff", "check", "-q", *python], [f"{BIN}/ruff", "format", "-q", "--check", *python]]
    result.append([f"{BIN}/python", "-m", "tests.language.words", *files])
    if tests:
        result.append([f"{BIN}/pytest", "-q", "-x", "-p", "no:cacheprovider", *tests])
    return result


def main() -> int:
    """Follow the folders and check each set of changes; return when Ctrl-C is pressed."""
    print(f"watch: {', '.join(FOLDERS)}: save a file to check it; Ctrl-C ends", flush=True)
    folders = [ROOT / folder for folder in FOLDERS]
    for changes in watchfiles.watch(*folders, raise_interrupt=False):
        paths = {str(Path(path).relative_to(ROOT)) for change, path in changes if change != watchfiles.Change.deleted}
        ignored = subprocess.run(
            ["git", "check-ignore", "--stdin"], cwd=ROOT, input="\n".join(paths), capture_output=True, text=True
        ).stdout.splitlines()
        changed = {path for path in paths - set(ignored) if (ROOT / path).is_file()}
        if not changed:
            continue
        print(f"\nwatch: {' '.join(sorted(changed))}", flush=True)
        if all(subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in commands(changed)):
            print("watch: all passed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
