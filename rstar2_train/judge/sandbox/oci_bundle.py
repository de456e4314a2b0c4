"""What a sandbox is made of: runsc, the root, the OCI bundle, the environment, and a folder of the worker's own.

Used by `sandbox_local`. Everything here happens before a sandbox runs, or after its worker died.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rstar2_train.judge.sandbox.rootfs import SetupError, choose_lanes, prepare_library, prepare_root

Isolation = Literal["gvisor", "none"]
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
NAME_PREFIX = "rstar2-sandbox-"


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """What all sandboxes of a worker share."""

    isolation: Isolation
    state: Path
    """Folder of this worker: bundles and runsc's own state."""
    platform: str = "systrap"
    runsc: str | None = None
    root: Path | None = None
    """The root file system (gvisor)."""
    library: Path | None = None
    """forkserver.so (none)."""
    lanes: tuple[str, ...] = ("bare",)


def find_runsc() -> str:
    """Path of runsc: RSTAR2_RUNSC, beside the interpreter (a venv), or on the PATH. Raises SetupError."""
    chosen = os.environ.get("RSTAR2_RUNSC")
    beside = Path(sys.executable).parent / "runsc"
    found = chosen or (str(beside) if beside.exists() else None) or shutil.which("runsc")
    if found and os.access(found, os.X_OK):
        return found
    raise SetupError(
        "runsc (gVisor) was not found on the PATH nor beside the interpreter, so there is no sandbox to run code in. "
        "Get it with `make setup` (builds the pinned version), from https://gvisor.dev/docs/user_guide/install/, or as "
        "the Debian package `runsc`; or set RSTAR2_RUNSC to it. `isolation: none` runs the code unprotected instead."
    )


def prepare(
    *, isolation: Isolation, state: Path, platform: str = "systrap", lanes: tuple[str, ...] | None = None
) -> SandboxSettings:
    """Checks for runsc, makes the root, or compiles for the host. Slow only the first time. Raises SetupError."""
    chosen = choose_lanes(lanes)
    runsc = find_runsc() if isolation == "gvisor" else None
    return SandboxSettings(
        isolation=isolation,
        state=state,
        platform=platform,
        lanes=chosen,
        runsc=runsc,
        root=prepare_root() if runsc else None,
        library=None if runsc else prepare_library(),
    )


def huge_pages_active() -> bool:
    """Whether this node gives gVisor's memory huge pages: forks are then two to three times cheaper."""
    try:
        return "[always]" in HUGE_PAGES.read_text() or "[within_size]" in HUGE_PAGES.read_text()
    except OSError:
        return False


def environment() -> dict[str, str]:
    """All that a snippet sees in its environment."""
    values = {
        "PATH": "/opt/python/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    if huge_pages_active():  # one contiguous heap; without huge pages it only costs
        values |= {
            "MALLOC_TOP_PAD_": str(64 << 20),
            "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
            "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
            "PYTHONMALLOC": "malloc",
        }
    return values


def bundle_config(root: Path, arguments: list[str]) -> dict[str, Any]:
    """The OCI runtime configuration: unprivileged user, no capability, read-only root, no network."""
    nothing: list[str] = []
    capabilities = {kind: nothing for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")}
    return {
        "ociVersion": "1.0.0",
        "hostname": "sandbox",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": 65534, "gid": 65534},
            "args": arguments,
            "env": [f"{name}={value}" for name, value in environment().items()],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": capabilities,
            "rlimits": [
                {"type": "RLIMIT_CORE", "hard": 0, "soft": 0},
                {"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024},
            ],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "size=1m"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }


@contextmanager
def own_state(state: Path) -> Iterator[None]:
    """Holds `state` for this process alone, cleared of what a killed worker left in it. Raises SetupError."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(f"another judge worker uses the folder {state}; give each its own --state") from None
        clear_leftovers(state)
        yield


def clear_leftovers(state: Path) -> None:
    """Kills and removes sandboxes whose worker is gone (they die with it; a runsc that could not is killed here)."""
    left = sorted(state.glob(f"{NAME_PREFIX}*"))
    if any((state / "runsc").glob(f"{NAME_PREFIX}*")):
        runsc = find_runsc()
        for folder in left:
            command = [runsc, "--root", str(state / "runsc"), "delete", "--force", folder.name]
            subprocess.run(command, capture_output=True, timeout=60, check=False)
    for folder in left:
        shutil.rmtree(folder)
    shutil.rmtree(state / "runsc", ignore_errors=True)
