"""One line of the report of `rstar2 doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "note"]
"""ok: nothing to do. missing: a job cannot run until the remedy is done. note: some jobs need the remedy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and what to do."""

    subject: str
    state: State
    found: str
    remedy: str = ""


def ok(subject: str, found: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(subject, "ok", found)
