"""The memory of the benchmark's own process, from the kernel."""

from __future__ import annotations

from pathlib import Path


def status_kibibytes(name: str) -> int:
    """Return a size of /proc/self/status, such as VmRSS (now) or VmHWM (peak), in KiB.

    `getrusage` would include the peak of the parent before the exec.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
