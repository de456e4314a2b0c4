"""The packages of `spec.judge.packages`: resolved once, locked, and installed into a folder of the user's cache.

    launch.local.preflight --> install --> uv or pip --> folder, lock
                                            '--> RSTAR2_SANDBOX_SITE: rootfs copies the folder into the sandbox's root

Only wheels are installed: a source package would run its build program outside of the sandbox.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rstar2_train.judge.sandbox.rootfs import MODULES_FILE, SetupError, installed_packages, prepare_root
from rstar2_train.utils.files import cache_folder, write_atomically

_HEAD = "# packages: "
"""Start of a lock's first line, which lists the requirements that it resolves."""
_SUBMODULES = {"scipy": ("scipy.integrate", "scipy.linalg", "scipy.optimize", "scipy.stats")}
"""Modules that a warm interpreter imports in addition to a package that loads them late."""


def install(requirements: Sequence[str], *, lock: Path, cache: Path | None = None) -> Path:
    """Return the folder with these packages and all that they need; install them if it is missing.

    `requirements`: names, optionally with versions. `lock`: file with the exact versions; written if it is missing or
    resolves other requirements. The versions of the sandbox's own packages are kept. Raises SetupError, which names
    the packages that do not exist.
    """
    locked = _read_lock(lock, requirements)
    wanted = locked or sorted(requirements)
    constraints = [f"{name}=={package.version}" for name, package in sorted(installed_packages().items())]
    base = (cache or cache_folder()) / "sandbox"
    final = base / f"packages-{_key([*wanted, '', *constraints])}"
    if not final.exists():
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base, prefix="building-") as temporary:
            folder = Path(temporary, "packages")
            _run_installer(wanted, constraints, folder, Path(temporary), requirements)
            (folder / MODULES_FILE).write_text("\n".join(_modules(folder, requirements)) + "\n")
            try:
                folder.rename(final)
            except OSError:
                if not final.exists():  # else another process was first
                    raise
    if not locked:
        write_atomically(lock, "\n".join([_head(requirements), *_versions(final), ""]))
    return final


def requirement_name(requirement: str) -> str:
    """Return the normalised name of a requirement such as `Pandas>=3`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower()


def _head(requirements: Sequence[str]) -> str:
    return _HEAD + " ".join(sorted(requirements))


def _read_lock(lock: Path, requirements: Sequence[str]) -> list[str]:
    """Return the exact versions in a lock; empty if it is missing or resolves other requirements."""
    lines = lock.read_text(encoding="utf-8").splitlines() if lock.exists() else []
    return lines[1:] if lines[:1] == [_head(requirements)] else []


def _key(parts: Sequence[str]) -> str:
    inputs = [*parts, sys.version, sysconfig.get_platform()]
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]


def _run_installer(
    wanted: Sequence[str], constraints: Sequence[str], folder: Path, scratch: Path, requirements: Sequence[str]
) -> None:
    """Install wheels into `folder`. Raises SetupError with the cause."""
    (scratch / "wanted.txt").write_text("\n".join(wanted))
    (scratch / "constraints.txt").write_text("\n".join(constraints))
    command = [*_installer(), "--target", str(folder), "--only-binary", ":all:"]
    command += ["--constraint", str(scratch / "constraints.txt"), "--requirement", str(scratch / "wanted.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    cause = done.stderr.strip()[-1500:]
    plain = re.sub(r"[-_.]+", "-", " ".join(cause.lower().split()))
    absent = [requirement for requirement in requirements if _is_absent(requirement_name(requirement), plain)]
    message = f"no such package or version: {', '.join(absent)}" if absent else "the packages cannot be installed"
    raise SetupError(f"{message}. Correct the names, or check the network. {Path(command[0]).name} printed:\n{cause}")


def _is_absent(name: str, message: str) -> bool:
    """Return whether a normalised message of uv or pip reports that a package, or its version, does not exist."""
    quoted = re.escape(name)
    after = rf"(no versions? of|distribution found for) {quoted}\b"
    return re.search(rf"\b{quoted} was not found|{after}", message) is not None


def _installer() -> list[str]:
    """Return the start of the command of uv, or of this interpreter's pip. Raises SetupError without both."""
    uv = shutil.which("uv") or next(map(str, sorted(cache_folder().glob("uv-*/bin/uv"), reverse=True)), None)
    if uv:
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    raise SetupError("Neither uv nor pip is installed, so packages cannot be resolved. Install uv.")


def _distributions(folder: Path) -> Iterator[importlib.metadata.Distribution]:
    return iter(importlib.metadata.distributions(path=[str(folder)]))


def _versions(folder: Path) -> list[str]:
    """Return the exact version of each installed package."""
    return sorted(f"{requirement_name(package.name)}=={package.version}" for package in _distributions(folder))


def _modules(folder: Path, requirements: Sequence[str]) -> list[str]:
    """Return the modules of the required packages, without those that these need."""
    names = {requirement_name(requirement) for requirement in requirements}
    modules = set()
    for package in _distributions(folder):
        if requirement_name(package.name) in names:
            parts = {file.parts[0] for file in package.files or ()}
            modules |= {part.removesuffix(".py") for part in parts if part.endswith(".py")}
            modules |= {part for part in parts if (folder / part / "__init__.py").exists()}
    return sorted(module for module in modules if module.isidentifier()) + sorted(
        submodule for module in modules for submodule in _SUBMODULES.get(module, ())
    )


def main(requirements: Sequence[str]) -> int:
    """Build the root of a container image with these packages, in the cache folder. Return the exit code."""
    try:
        if requirements:
            folder = install(requirements, lock=cache_folder() / "packages.lock")
            os.environ["RSTAR2_SANDBOX_SITE"] = str(folder)
        prepare_root()
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
