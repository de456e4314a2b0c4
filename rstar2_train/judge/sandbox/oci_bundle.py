"""The parts of a local sandbox: runsc, the root, the OCI bundle, the environment, and the worker's state folder.

Used by `local` and, for the environment, by `executor_server`. All of it runs before a sandbox starts or after its
worker has died.
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

from rstar2_train.judge.sandbox.rootfs import (
    LOCALES,
    TIME_ZONES,
    SetupError,
    choose_lanes,
    prepare_library,
    prepare_root,
)

Isolation = Literal["gvisor", "none"]
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
NAME_PREFIX = "rstar2-sandbox-"
FIRST_USER = 100_000
"""First user id of calls and sessions inside a sandbox. They exist only in gVisor."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Settings that all local sandboxes of a worker share."""

    isolation: Isolation
    state: Path
    """Folder of this worker, for bundles and the state of runsc."""
    platform: str = "systrap"
    runsc: str | None = None
    root: Path | None = None
    """The root file system (isolation gvisor)."""
    library: Path | None = None
    """forkserver.so (isolation none)."""
    lanes: tuple[str, ...] = ("bare",)


def find_runsc() -> str:
    """Return the path of runsc: RSTAR2_RUNSC, or in the interpreter's folder, or on the PATH. Raises SetupError."""
    configured = os.environ.get("RSTAR2_RUNSC")
    in_venv = Path(sys.executable).parent / "runsc"
    path = configured or (str(in_venv) if in_venv.exists() else None) or shutil.which("runsc")
    if path and os.access(path, os.X_OK):
        return path
    raise SetupError(
        "runsc (gVisor) was not found on the PATH or in the interpreter's folder, so no sandbox can be started. "
        "Install it with `make setup` (builds the pinned version), from https://gvisor.dev/docs/user_guide/install/, "
        "or as the Debian package `runsc`, or set RSTAR2_RUNSC to its path. "
        "With isolation none the code runs unprotected instead."
    )


def prepare(
    *, isolation: Isolation, state: Path, platform: str = "systrap", lanes: tuple[str, ...] | None = None
) -> SandboxSettings:
    """Find runsc and build the root, or compile the fork server (isolation none). Raises SetupError.

    The first time takes seconds; later the result is in the cache.
    """
    runsc = find_runsc() if isolation == "gvisor" else None
    return SandboxSettings(
        isolation=isolation,
        state=state,
        platform=platform,
        lanes=choose_lanes(lanes),
        runsc=runsc,
        root=prepare_root() if runsc else None,
        library=None if runsc else prepare_library(),
    )


def huge_pages_active() -> bool:
    """Return whether this node gives gVisor's memory huge pages, which make forks two to three times cheaper."""
    try:
        return "[always]" in HUGE_PAGES.read_text() or "[within_size]" in HUGE_PAGES.read_text()
    except OSError:
        return False


def environment(*, own_root: bool = True) -> dict[str, str]:
    """Return the complete environment of a snippet. `own_root`: whether its root is that of `rootfs`."""
    values = {"LOCPATH": LOCALES, "PYTHONTZPATH": TIME_ZONES, "TZDIR": TIME_ZONES} if own_root else {}
    values |= {
        "PATH": "/opt/python/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "MALLOC_ARENA_MAX": "1",  # an arena per thread reserves 64 MiB of the call's address space each
    }
    if huge_pages_active():  # one contiguous heap; without huge pages it is slower
        values |= {
            "MALLOC_TOP_PAD_": str(64 << 20),
            "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
            "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
            "PYTHONMALLOC": "malloc",
        }
    return values


def bundle_config(root: Path, arguments: list[str]) -> dict[str, Any]:
    """Return the OCI runtime configuration: read-only root, no network, no capability but CAP_SETUID.

    With it a zygote becomes an unprivileged user, and gives each call a user id of its own (executor/child.c).
    """
    kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
    capabilities = {kind: ["CAP_SETUID"] for kind in kinds}
    return {
        "ociVersion": "1.0.0",
        "hostname": "sandbox",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": 0, "gid": 65534},
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
def locked_state(state: Path) -> Iterator[None]:
    """Lock `state` for this process and remove the sandboxes of an earlier worker from it. Raises SetupError."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SetupError(
                f"Another judge worker uses the state folder {state}. Give each worker its own folder with --state."
            ) from None
        remove_stale_sandboxes(state)
        yield


def remove_stale_sandboxes(state: Path) -> None:
    """Kill and remove the sandboxes of a worker that has died. Normally they die with it."""
    bundles = sorted(state.glob(f"{NAME_PREFIX}*"))
    if any((state / "runsc").glob(f"{NAME_PREFIX}*")):
        runsc = find_runsc()
        for folder in bundles:
            command = [runsc, "--root", str(state / "runsc"), "delete", "--force", folder.name]
            subprocess.run(command, capture_output=True, timeout=60, check=False)
    for folder in bundles:
        shutil.rmtree(folder)
    shutil.rmtree(state / "runsc", ignore_errors=True)
