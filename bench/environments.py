"""Measures tools, rewards and environments: a second domain learned from its reward, equal rollouts, and attacks.

`make bench-environments` writes bench/results/environments.json; `QUICK=1 make bench-environments` is the short form
with the same keys, and prints instead of writing. `python -m bench.environments --only sql` measures one key and keeps
the others. A stopped benchmark resumes: finished runs under `.rstar2/` are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import environments_attacks, environments_sql
from bench.learning import ROOT
from bench.provenance import describe_commit, describe_machine

RESULTS = ROOT / "bench" / "results" / "environments.json"
SAME_TASK = Path("tests") / "integration" / "rollout" / "test_same_task.py"
"""Test of the tiny task as a built-in tool, a function tool, an MCP server's tool and an environment."""


def same_tokens() -> bool:
    """Return whether the four forms of one task give the same tokens, rewards and statuses for the same seeds."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SAME_TASK)]
    return subprocess.run(argv, cwd=ROOT, check=False).returncode == 0


KEYS: dict[str, Callable[..., Any]] = {
    "same_tokens": lambda **_: same_tokens(),
    "attacks": lambda **_: environments_attacks.measure(),
    "sql": environments_sql.measure,
}
"""Function of each key; its arguments are those of `environments_sql.measure`."""


def main() -> None:
    """Measure the keys of the command line, and write or print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=KEYS, action="append", help="measure only this key (repeatable)")
    parser.add_argument("--seeds", type=int, help="seeds of the key sql (default: 3; 1 in the short form)")
    options = parser.parse_args()
    quick = bool(os.environ.get("QUICK"))
    results: dict[str, Any] = {}
    if RESULTS.exists() and not quick:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for key in options.only or KEYS:
        results[key] = KEYS[key](quick=quick, seeds=options.seeds)
        command = f"{'QUICK=1 ' if quick else ''}python -m bench.environments --only {key}"
        command += f" --seeds {options.seeds}" if options.seeds and key == "sql" else ""
        results.setdefault("runs", {})[key] = {
            "command": command,
            "commit": describe_commit(),
            "machine": describe_machine(),
        }
        if not quick:
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
