"""What `decide` answers: which objects a job should have now, and what to say about it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["Invalid", "Pending", "Preparing", "Running", "Restarting", "Suspending", "Suspended", "Finishing",
                "Complete", "Failed"]  # fmt: skip
FINAL: tuple[Phase, Phase] = ("Complete", "Failed")
"""Phases that a job never leaves; its conditions have the same names."""
Ending = Literal["completed", "failed"]


@dataclass(frozen=True, slots=True)
class StageAttempt:
    """One attempt of a stage: the Job that should exist."""

    stage: str
    number: int
    restarts: int = 0
    """Restarts of the whole job up to it."""
    counted: int = 0
    """Those of them that count towards maxRestarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job should have now. Whatever it has beyond that is deleted, but for finished Jobs and its storage."""

    phase: Phase
    why: str = ""
    """CamelCase reason of the phase."""
    message: str = ""
    """The same for a person."""
    stage: str | None = None
    """The stage it is at."""
    prepare: bool = False
    """The Job that fills the storage."""
    serving: bool = False
    """Redis, judge, executors and engines."""
    attempt: StageAttempt | None = None
    """The attempt that should exist."""
    report: Ending | None = None
    """The Job that writes the report."""
    restarts: int = 0
    counted: int = 0
    released: bool = False
    """Everything was let go because not all of it could be scheduled."""
    remove: bool = False
    """The job itself should be deleted (its time to live is over)."""
    wake_at: float | None = None
    """When to decide again though nothing has changed; seconds since the epoch."""
