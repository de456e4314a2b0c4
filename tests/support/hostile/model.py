"""An attack, its targets, and the check of its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

BREACH = "breach:"
ANY_END = ("ok", "error", "timeout", "memory", "output_limit", "killed")
"""Any status except `internal`, which would blame the judge."""
PREAMBLE = """import ctypes, errno, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def breach(*details):
    print('breach:', *details, flush=True)
def attempt(name, action):
    try:
        result = action()
    except (OSError, ValueError):
        return
    breach(name, result)
def call(name, *arguments):  # a raw system call
    if libc.syscall(*arguments) >= 0:
        breach(name)
"""
PROBE = (
    "import os, builtins, signal\n"
    "left = sorted(os.listdir('/tmp')), [p for p in os.listdir('/proc') if p.isdigit()]\n"
    "print(*left, callable(builtins.print), 2 + 2)"
)
CLEAN = "[] ['1'] True 4\n"
"""Output of PROBE in a sandbox in which nothing of an earlier call is left."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """One attack."""

    name: str
    description: str
    """The attempted attack, as the predicate of a sentence."""
    code: str
    status: tuple[str, ...] = ANY_END
    """Allowed statuses."""
    stdout: str | None = None
    """Required output; None: anything without `breach:`."""
    before: str = ""
    """A call that runs first, and whose traces `code` searches for."""
    limits: dict[str, float] = field(default_factory=dict)

    def program(self, values: dict[str, str]) -> str:
        """Return the program with its targets: `values` of the names FILES and ADDRESSES."""
        code = PREAMBLE + self.code
        for name, value in values.items():
            code = code.replace(name, value)
        return code

    def problem(self, status: str, stdout: str, stderr: str) -> str | None:
        """Return the defect of its result, or None."""
        if status not in self.status:
            return f"status {status}, expected {' or '.join(self.status)}; stderr: {stderr[-500:]}"
        if BREACH in stdout:
            return f"it reached a target: {stdout[:500]}"
        if self.stdout is not None and stdout != self.stdout:
            return f"printed {stdout[:500]!r}, expected {self.stdout!r}; stderr: {stderr[-500:]}"
        return None


def targets(files: Iterable[str], addresses: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Return the values for `program`: files and addresses of listeners, none of which may be reachable."""
    return {"FILES": repr(list(files)), "ADDRESSES": repr(list(addresses))}


def hostile(name: str, description: str, code: str, *status: str, **fields: object) -> Hostile:
    """Return an attack; its allowed statuses are the arguments after the code."""
    if "ok" in status:  # it ends by itself, on a loaded machine later
        fields["limits"] = {"wall_seconds": 60, **fields.get("limits", {})}  # type: ignore[dict-item]
    return Hostile(name, description, code, status or ANY_END, **fields)  # type: ignore[arg-type]
