"""What an attack is, what it is given, and how it is told whether it got anywhere. The attacks lie beside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

WON = "won:"
ANY_END = ("ok", "error", "timeout", "memory", "output_limit", "killed")
"""However it ends, it ends as itself: never `internal`, which would blame the judge."""
PREAMBLE = """import ctypes, errno, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def won(*what):
    print('won:', *what, flush=True)
def attempt(what, action):
    try:
        got = action()
    except (OSError, ValueError):
        return
    won(what, got)
def call(what, *arguments):  # a raw system call
    if libc.syscall(*arguments) >= 0:
        won(what)
"""
PROBE = (
    "import os, builtins, signal\n"
    "seen = sorted(os.listdir('/tmp')), [p for p in os.listdir('/proc') if p.isdigit()]\n"
    "print(*seen, callable(builtins.print), 2 + 2)"
)
PROBED = "[] ['1'] True 4\n"
"""What a sandbox prints for PROBE when nothing was left in it."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """One attack."""

    name: str
    tries: str
    code: str
    status: tuple[str, ...] = ANY_END
    """How it may end."""
    stdout: str | None = None
    """All that it may print; None: anything without `won:`."""
    before: str = ""
    """A call that is run first: what it leaves is what `code` looks for."""
    limits: dict[str, float] = field(default_factory=dict)

    def program(self, values: dict[str, str]) -> str:
        """The program, with baits filled in: FILES, ADDRESSES."""
        code = PREAMBLE + self.code
        for name, value in values.items():
            code = code.replace(name, value)
        return code

    def problem(self, status: str, stdout: str, stderr: str) -> str | None:
        """What is wrong with how it ended; None when nothing is."""
        if status not in self.status:
            return f"status {status}, expected {' or '.join(self.status)}; stderr: {stderr[-500:]}"
        if WON in stdout:
            return f"it got through: {stdout[:500]}"
        if self.stdout is not None and stdout != self.stdout:
            return f"printed {stdout[:500]!r}, expected {self.stdout!r}; stderr: {stderr[-500:]}"
        return None


def baits(files: Iterable[str], addresses: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Values for `program`: files that must not be visible, addresses of listeners that must not be reachable."""
    return {"FILES": repr(list(files)), "ADDRESSES": repr(list(addresses))}


def hostile(name: str, tries: str, code: str, *status: str, **more: object) -> Hostile:
    """An attack in few words: how it may end comes after the code."""
    return Hostile(name, tries, code, status or ANY_END, **more)  # type: ignore[arg-type]
