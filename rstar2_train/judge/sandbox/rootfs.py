"""The root file system of a sandbox: a copy of the files that Python needs, built once into the user's cache.

It is a copy instead of bind mounts: it contains no other file of the host, and the snippet's unprivileged user can read
every file even if the interpreter is in a private home. All sandboxes share one folder. Its name is a hash of its
inputs. It is built in a temporary folder and renamed, so that two processes may build it at the same time.
"""

from __future__ import annotations

import compileall
import contextlib
import hashlib
import importlib.metadata
import os
import py_compile
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rstar2_train.utils.files import cache_folder

EXECUTOR = Path(__file__).parents[1] / "executor"
PACKAGES = ("numpy", "sympy", "mpmath", "math-verify", "latex2sympy2_extended", "antlr4-python3-runtime", "tzdata")
"""Distributions that snippets may import. Those that are installed here are copied."""
LANE_PACKAGES = {"bare": None, "std": None, "numpy": "numpy", "sympy": "sympy", "packages": None}
"""Lane of the executor -> the distribution that it needs. `packages` needs the packages of a job."""
PYTHON = "/opt/python/bin/python3"
PROGRAM = "/opt/executor/program.py"
EXECUTOR_FILES = ("program.py", "run_program.py", "magics.py")
"""Files of EXECUTOR that a sandbox contains, next to each other."""
LIBRARY = "/opt/executor/forkserver.so"
WARM_UP = "/opt/executor/warm_up.py"
"""Program that imports the WARM_UP_MODULE of each package that has one."""
WARM_UP_MODULE = "sandbox_warm_up"
"""Module of a package in RSTAR2_SANDBOX_PACKAGES that the lane `std` imports before its first call."""
MODULES_FILE = "package_modules.txt"
"""Name of the list of modules that the lane `packages` has loaded: in a job's folder of packages, and next to
forkserver.so."""
PACKAGES_FOLDER = f"/opt/python/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
TIME_ZONES = f"{PACKAGES_FOLDER}/tzdata/zoneinfo"
LOCALES = "/opt/python/lib/locale"
UTF8_LOCALE = Path("/usr/lib/locale/C.utf8")
"""The locale of every sandbox, which glibc reads from files."""
SKIPPED = {"test", "tests", "idlelib", "ensurepip", "site-packages", "dist-packages", "__pycache__", "turtledemo"}
SKIPPED |= {"lib2to3", "tkinter", "config"}
MOUNT_POINTS = ("proc", "tmp", "dev", "dev/shm", "sys", "etc")
UNUSED_DAYS = 14
"""A root that was not used for this many days is removed when another one is built."""
LAYOUT = "8"
"""Part of the hash. Change it when this file changes the layout of the root."""


class SetupError(Exception):
    """This machine lacks something; the message names what to install or change."""


def requested_packages() -> tuple[list[str], list[Path]]:
    """Return the distributions and the package folders in RSTAR2_SANDBOX_PACKAGES.

    They are separated by spaces or commas; a name with a space or a comma is quoted, as in a shell.

    Raises SetupError for a quotation that does not end.
    """
    text = os.environ.get("RSTAR2_SANDBOX_PACKAGES", "")
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace += ","
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        entries = list(lexer)
    except ValueError as error:
        raise SetupError(f"RSTAR2_SANDBOX_PACKAGES: {error} in {text!r}: quote a name that has a quote") from error
    return [entry for entry in entries if "/" not in entry], [Path(entry) for entry in entries if "/" in entry]


def installed_packages() -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions to copy: those of PACKAGES that are installed here, and the requested ones.

    Raises SetupError if a requested one is not installed.
    """
    requested, folders = requested_packages()
    installed = {}
    for name in (*PACKAGES, *requested):
        for distribution in importlib.metadata.distributions(name=name):
            installed[name] = distribution
            break
    missing = [name for name in requested if name not in installed]
    missing += [str(folder) for folder in folders if not (folder / "__init__.py").exists()]
    if missing:
        raise SetupError(
            f"RSTAR2_SANDBOX_PACKAGES: {', '.join(missing)} is neither an installed distribution nor the folder of a "
            "package. Install it in the environment of the judge (uv pip install NAME), or correct the name."
        )
    return installed


def site() -> Path | None:
    """Return the folder of a job's packages (`packages.py`): RSTAR2_SANDBOX_SITE, or None."""
    configured = os.environ.get("RSTAR2_SANDBOX_SITE")
    return Path(configured) if configured else None


def package_modules() -> frozenset[str]:
    """Return the top-level modules that the lane `packages` has loaded; empty if the sandbox does not have it."""
    root, folder = image_root(), site()
    file = root / LIBRARY[1:] if root else folder / MODULES_FILE if folder else None
    file = file and file.with_name(MODULES_FILE)
    lines = file.read_text().split() if file and file.exists() else []
    return frozenset(line.partition(".")[0] for line in lines)


def available_lanes() -> tuple[str, ...]:
    """Return the lanes whose package is installed here; `bare` and `std` need none."""
    installed = installed_packages()
    lanes = (lane for lane, package in LANE_PACKAGES.items() if package is None or package in installed)
    return tuple(lane for lane in lanes if lane != "packages" or package_modules())


def choose_lanes(requested: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return `bare` and the requested lanes (None: all available lanes). Raises SetupError if one is unavailable."""
    available = available_lanes()
    missing = set(requested or ()) - set(available)
    if missing:
        raise SetupError(f"--lanes {' '.join(sorted(missing))}: the package of this name is not installed.")
    return tuple(lane for lane in available if lane == "bare" or requested is None or lane in requested)


def _key() -> str:
    """Return a hash of all inputs of the root."""
    digest = hashlib.sha256()
    parts = [LAYOUT, sys.version, os.path.realpath(sys.executable), sysconfig.get_platform()]
    parts += [f"{name}=={package.version}" for name, package in sorted(installed_packages().items())]
    for part in parts:
        digest.update(part.encode() + b"\0")
    if folder := site():
        digest.update(folder.name.encode())
    folders = requested_packages()[1]
    sources = [path for path in EXECUTOR.iterdir() if path.suffix in (".c", ".h", ".py")]
    for source in sorted(sources) + sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(str(source.name).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(target: Path) -> None:
    """Compile the fork server to `target`. Raises SetupError if the compiler is missing or fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SetupError(
            "No C compiler was found; the judge's executor contains C code. "
            "Install a compiler (Debian: apt install gcc libc6-dev)."
        )
    sources = [str(EXECUTOR / name) for name in ("forkserver.c", "child.c")]
    command = [compiler, "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(target), *sources, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def _shared_libraries(binaries: Iterator[Path]) -> dict[str, Path]:
    """Return the files that the loader opens for these binaries, and the loader itself: name -> file."""
    libraries: dict[str, Path] = {}
    paths = [str(path) for path in binaries]
    listing = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=False).stdout
    for line in listing.splitlines():
        match = re.match(r"\s+(?:(\S+) => )?(/\S+) \(0x", line)
        if match:
            libraries[match[1] or match[2]] = Path(match[2])
    return libraries


def _copy(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _copy_tree(source: Path, target: Path, skipped: set[str]) -> None:
    """Copy the files below `source`, except skipped folders, with read permission for all users."""
    for folder, folders, files in os.walk(source, followlinks=True):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith("config-")]
        for name in files:
            if not name.endswith((".pyc", ".a", ".whl")):
                path = Path(folder, name)
                _copy(path, target / path.relative_to(source), 0o644)


def _build(root: Path) -> None:
    """Build the root in an empty folder."""
    paths = sysconfig.get_paths()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = root / "opt/python/lib" / version
    executable = Path(os.path.realpath(sys.executable))
    _copy(executable, root / PYTHON[1:], 0o755)
    _copy_tree(Path(paths["stdlib"]), library, SKIPPED)
    dynamic = Path(sysconfig.get_config_var("DESTSHARED") or Path(paths["stdlib"]) / "lib-dynload")
    if not (library / "lib-dynload").exists() and dynamic.exists():
        _copy_tree(dynamic, library / "lib-dynload", set())
    if packages := site():
        _copy_tree(packages, root / PACKAGES_FOLDER[1:], {"tests", "__pycache__", "bin"})
        (root / PACKAGES_FOLDER[1:] / MODULES_FILE).unlink()
        _copy(packages / MODULES_FILE, (root / LIBRARY[1:]).with_name(MODULES_FILE), 0o644)
    for distribution in installed_packages().values():
        for name in distribution.files or []:
            source = Path(str(distribution.locate_file(name)))
            inside = ".." not in name.parts and not SKIPPED.intersection(name.parts)
            if inside and source.suffix != ".pyc" and source.exists():
                _copy(source, root / PACKAGES_FOLDER[1:] / name, 0o644)
    warm_up = ""
    for package in requested_packages()[1]:
        _copy_tree(package, root / PACKAGES_FOLDER[1:] / package.name, SKIPPED)
        if (package / f"{WARM_UP_MODULE}.py").exists():
            warm_up += f"import {package.name}.{WARM_UP_MODULE}\n"
    (root / WARM_UP[1:]).parent.mkdir(parents=True, exist_ok=True)
    (root / WARM_UP[1:]).write_text(warm_up)
    compile_library(root / LIBRARY[1:])
    for file_name in EXECUTOR_FILES:
        _copy(EXECUTOR / file_name, (root / PROGRAM[1:]).with_name(file_name), 0o644)
    binaries = [executable, root / LIBRARY[1:], *library.rglob("*.so"), *library.rglob("*.so.*")]
    for needed, file in _shared_libraries(iter(binaries)).items():
        if needed.startswith("/"):  # the loader, whose absolute path is in the binaries
            _copy(file, root / needed[1:], 0o755)
        elif not file.is_relative_to(root):
            _copy(file, root / "lib" / needed, 0o755)
    if UTF8_LOCALE.is_dir():
        _copy_tree(UTF8_LOCALE, root / LOCALES[1:] / UTF8_LOCALE.name, set())
    for folder in MOUNT_POINTS:
        (root / folder).mkdir(exist_ok=True)
    for descriptor, stream in enumerate(("stdin", "stdout", "stderr")):  # in a jail; gVisor mounts its own /dev
        (root / "dev" / stream).symlink_to(f"/proc/self/fd/{descriptor}")
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
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
        elif path.suffix == ".pyc":
            path.chmod(0o644)


def image_root() -> Path | None:
    """Return the root of a container image: the folder in RSTAR2_SANDBOX_ROOT, or None. Raises SetupError."""
    configured = os.environ.get("RSTAR2_SANDBOX_ROOT")
    if configured and not Path(configured, LIBRARY[1:]).exists():
        raise SetupError(
            f"RSTAR2_SANDBOX_ROOT={configured} is not the root of a sandbox. Unset it, or build the image again."
        )
    return Path(configured) if configured else None


def prepare_root() -> Path:
    """Return the folder of the root; build it if it is missing (takes seconds). Raises SetupError."""
    if root := image_root():
        return root
    base = cache_folder() / "sandbox"
    final = base / f"root-{_key()}"
    if final.exists():
        with contextlib.suppress(OSError):  # a cache that is mounted read-only cannot be touched
            os.utime(final)
        return final
    base.mkdir(parents=True, exist_ok=True)
    for old in base.glob("root-*"):
        if old.stat().st_mtime < time.time() - UNUSED_DAYS * 86400:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=base, prefix="building-") as temporary:
        root = Path(temporary) / "root"
        root.mkdir()
        _build(root)
        try:
            root.rename(final)
        except OSError:
            if not final.exists():  # else another process was first, with an equal copy
                raise
    return final


def prepare_library() -> Path:
    """Return forkserver.so for isolation `none`; compile it if it is missing. Raises SetupError."""
    if root := image_root():
        return root / LIBRARY[1:]
    base = cache_folder() / "sandbox"
    final = base / f"library-{_key()}" / "forkserver.so"
    if not final.exists():
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base, prefix="building-") as temporary:
            compile_library(Path(temporary) / "forkserver.so")
            Path(temporary, "forkserver.so").rename(final)
    return final
