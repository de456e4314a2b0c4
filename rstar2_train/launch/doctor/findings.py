"""One line of the report of `rstar2 doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "note"]
"""ok: nothing to do. missing: a job cannot run until the remedy is done. note: some jobs need the remedy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A part, its state, a detail, and what to do."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


def ok(subject: str, detail: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(subject, "ok", detail)
