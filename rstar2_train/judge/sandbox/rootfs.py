"""The root file system of a sandbox: a copy of just what Python needs, made once into the user's cache.

A copy, not bind mounts: nothing else of the host is there to be seen, every file is readable by the snippet's
unprivileged user even when the interpreter lies under a private home, and one folder serves all sandboxes.
Keyed by everything that goes into it; made aside and renamed, so that two clones may make it at the same time.
"""

from __future__ import annotations

import compileall
import contextlib
import errno
import hashlib
import importlib.metadata
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

EXECUTOR = Path(__file__).parents[1] / "executor"
PACKAGES = ("numpy", "sympy", "mpmath", "math-verify", "latex2sympy2_extended", "antlr4-python3-runtime")
"""Distributions that snippets may import, copied when they are installed beside us."""
LANE_PACKAGES = {"bare": None, "std": None, "numpy": "numpy", "sympy": "sympy"}
"""Lanes of the executor, and the distribution each one needs."""
PYTHON = "/opt/python/bin/python3"
PROGRAM = "/opt/executor/program.py"
LIBRARY = "/opt/executor/forkserver.so"
PACKAGES_FOLDER = f"/opt/python/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
SKIPPED = {"test", "tests", "idlelib", "ensurepip", "site-packages", "dist-packages", "__pycache__", "turtledemo"}
SKIPPED |= {"lib2to3", "tkinter", "pydoc_data", "config"}
MOUNT_POINTS = ("proc", "tmp", "dev", "sys", "etc")
UNUSED_DAYS = 14
"""A root that no worker has started from for so long is removed when another is made."""
LAYOUT = "4"
"""Changed whenever this file lays the root out differently."""


class SetupError(Exception):
    """Something this machine lacks; the message says what to install."""


def cache_folder() -> Path:
    """Where compiled files and roots are kept: RSTAR2_CACHE, or the user's cache folder."""
    chosen = os.environ.get("RSTAR2_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "rstar2"


@contextlib.contextmanager
def named_when_full(folder: Path) -> Iterator[None]:
    """Names the folder in the error of a full disk, which names nothing when it comes from a write."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(folder)) from error


def installed_packages() -> dict[str, importlib.metadata.Distribution]:
    """Those of PACKAGES that are installed here."""
    found = {}
    for name in PACKAGES:
        for distribution in importlib.metadata.distributions(name=name):
            found[name] = distribution
            break
    return found


def available_lanes() -> tuple[str, ...]:
    """Lanes whose package is installed here; `bare` and `std` need none."""
    installed = installed_packages()
    return tuple(lane for lane, package in LANE_PACKAGES.items() if package is None or package in installed)


def choose_lanes(wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The lanes to have: `bare`, and those wanted (None: all that can be had). Raises SetupError."""
    installed = available_lanes()
    missing = set(wanted or ()) - set(installed)
    if missing:
        raise SetupError(f"--lanes {' '.join(sorted(missing))}: the package of that name is not installed")
    return tuple(lane for lane in installed if lane == "bare" or wanted is None or lane in wanted)


def _key() -> str:
    """Hash of everything that goes into the root."""
    digest = hashlib.sha256()
    parts = [LAYOUT, sys.version, os.path.realpath(sys.executable), sysconfig.get_platform()]
    parts += [f"{name}=={found.version}" for name, found in sorted(installed_packages().items())]
    for part in parts:
        digest.update(part.encode() + b"\0")
    for source in sorted(EXECUTOR.iterdir()):
        if source.suffix in (".c", ".h", ".py"):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(target: Path) -> None:
    """Compiles the fork server to `target`. Raises SetupError when there is no compiler, or it fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SetupError(
            "no C compiler: the judge's executor has one small C file. Install one (Debian: apt install gcc libc6-dev)"
        )
    sources = [str(EXECUTOR / name) for name in ("forkserver.c", "child.c")]
    command = [compiler, "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(target), *sources, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def _shared_libraries(binaries: Iterator[Path]) -> dict[str, Path]:
    """What the loader would open for these binaries: name -> file, the loader itself included."""
    found: dict[str, Path] = {}
    paths = [str(path) for path in binaries]
    listing = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=False).stdout
    for line in listing.splitlines():
        match = re.match(r"\s+(?:(\S+) => )?(/\S+) \(0x", line)
        if match:
            found[match[1] or match[2]] = Path(match[2])
    return found


def _copy(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _copy_tree(source: Path, target: Path, skipped: set[str]) -> None:
    """Copies the files below `source` that are not in a skipped folder, readable by all."""
    for folder, folders, files in os.walk(source, followlinks=True):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith("config-")]
        for name in files:
            if not name.endswith((".pyc", ".a", ".whl")):
                path = Path(folder, name)
                _copy(path, target / path.relative_to(source), 0o644)


def _build(root: Path) -> None:
    """Fills an empty folder with the root."""
    paths = sysconfig.get_paths()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "opt/python/lib" / version
    executable = Path(os.path.realpath(sys.executable))
    _copy(executable, root / PYTHON[1:], 0o755)
    _copy_tree(Path(paths["stdlib"]), library, SKIPPED)
    dynamic = Path(sysconfig.get_config_var("DESTSHARED") or Path(paths["stdlib"]) / "lib-dynload")
    if not (library / "lib-dynload").exists() and dynamic.exists():
        _copy_tree(dynamic, library / "lib-dynload", set())
    for distribution in installed_packages().values():
        for name in distribution.files or []:
            source = Path(str(distribution.locate_file(name)))
            inside = ".." not in name.parts and not SKIPPED.intersection(name.parts)
            if inside and source.suffix != ".pyc" and source.exists():
                _copy(source, root / PACKAGES_FOLDER[1:] / name, 0o644)
    compile_library(root / LIBRARY[1:])
    _copy(EXECUTOR / "program.py", root / PROGRAM[1:], 0o644)
    binaries = [executable, root / LIBRARY[1:], *library.rglob("*.so"), *library.rglob("*.so.*")]
    for needed, file in _shared_libraries(iter(binaries)).items():
        if needed.startswith("/"):  # the loader: where the binaries say it is
            _copy(file, root / needed[1:], 0o755)
        elif not file.is_relative_to(root):
            _copy(file, root / "lib" / needed, 0o755)
    for folder in MOUNT_POINTS:
        (root / folder).mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("nobody:x:65534:65534:nobody:/tmp:/bin/false\n")
    (root / "etc/group").write_text("nogroup:x:65534:\n")
    compileall.compile_dir(
        library,
        quiet=2,
        stripdir=str(root),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        workers=min(4, os.cpu_count() or 1),
    )
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
        elif path.suffix == ".pyc":
            path.chmod(0o644)


def given_root() -> Path | None:
    """The root that came with an image: RSTAR2_SANDBOX_ROOT names it, and nothing else is looked for."""
    given = os.environ.get("RSTAR2_SANDBOX_ROOT")
    if given and not Path(given, LIBRARY[1:]).exists():
        raise SetupError(f"RSTAR2_SANDBOX_ROOT={given} is no root of a sandbox; unset it, or build the image again")
    return Path(given) if given else None


def prepare_root(cache: Path | None = None) -> Path:
    """The root's folder, made first if this is the first time (seconds). Raises SetupError with what is missing."""
    if given := given_root():
        return given
    base = (cache or cache_folder()) / "sandbox"
    final = base / f"root-{_key()}"
    if final.exists():
        with contextlib.suppress(OSError):  # a cache that is mounted read-only is never unused
            os.utime(final)
        return final
    base.mkdir(parents=True, exist_ok=True)
    for old in base.glob("root-*"):
        if old.stat().st_mtime < time.time() - UNUSED_DAYS * 86400:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=base, prefix="making-") as aside:
        root = Path(aside) / "root"
        root.mkdir()
        _build(root)
        try:
            root.rename(final)
        except OSError:
            if not final.exists():  # else: another process was first, its copy is as good
                raise
    return final


def prepare_library(cache: Path | None = None) -> Path:
    """forkserver.so for `isolation: none`, where the program runs on the host itself. Raises SetupError."""
    if given := given_root():
        return given / LIBRARY[1:]
    base = (cache or cache_folder()) / "sandbox"
    final = base / f"library-{_key()}" / "forkserver.so"
    if not final.exists():
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base, prefix="making-") as aside:
            compile_library(Path(aside) / "forkserver.so")
            Path(aside, "forkserver.so").rename(final)
    return final
