"""What every stage driver has at hand: the job, its state, where its helpers are, and how to say what it reached.

Made once by `__main__`, passed down; the drivers of the stage types hold no other globals.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rstar2_train.api.contracts import (
    MESSAGE_LENGTH,
    AttemptRecord,
    CheckpointRef,
    Outcome,
    Progress,
    Reason,
    StageFailed,
    write_model,
)
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState, StageState
from rstar2_train.tracking.tracker import Tracker


class SuspendRequested(Exception):
    """Raised between two steps, or in the middle of one, when the driver was asked to stop."""


@dataclass(frozen=True)
class Endpoints:
    """Where the other roles are."""

    engines: tuple[str, ...] = ()
    """Base URLs of the vLLM engines."""
    engine_service: str = ""
    """`HOST:PORT` whose addresses are engines too, looked up again and again; empty: only `engines`."""
    judge: str = ""
    """Base URL of the judge API."""
    ray: str | None = None
    """Ray address; None: a private Ray on this machine."""


@dataclass
class StageContext:
    """One attempt of one stage."""

    job: AgenticRLJob
    stage: Stage
    attempt: int
    state: JobState
    endpoints: Endpoints
    tracker: Tracker
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by SIGTERM: checkpoint, then end as suspended."""
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(stage=self.stage.name, attempt=self.attempt)

    @property
    def folder(self) -> StageState:
        """The stage's own folder."""
        return self.state.stage(self.stage.name)

    @property
    def seed(self) -> int:
        """The job's seed."""
        return self.job.spec.seed

    def report(self, *, metrics: Mapping[str, float] | None = None, **changes: object) -> None:
        """Change fields of the progress and write it. A metric that is not finite is left out: JSON cannot hold it."""
        if metrics is not None:
            changes["metrics"] = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.progress = self.progress.model_copy(update=changes | {"updated_at": time.time()})
        write_model(self.state.progress_file, self.progress)

    def watch_signals(self) -> None:
        """Let SIGTERM and SIGINT ask for a suspension. Again after Ray has started: it puts in handlers of its own."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self.stopping.set)

    def report_rollouts(self, done: int, total: int) -> None:
        """Show how many rollouts of the present batch have ended; written at most twice a second."""
        if done < total and time.time() - self.progress.updated_at < 0.5:
            return
        self.report(rollouts_done=done, rollouts_total=total)

    def check_stop(self) -> None:
        """Raise Suspend when the driver was asked to stop."""
        if self.stopping.is_set():
            raise SuspendRequested

    def check_current(self) -> None:
        """Raise StageFailed when another attempt of the stage has begun: this one must write nothing any more."""
        current = self.folder.attempt()
        if current != AttemptRecord(attempt=self.attempt, uid=self.job.metadata.uid):
            by = f"attempt {current.attempt} of job {current.uid}" if current else "nobody (its file is gone)"
            raise StageFailed("StaleAttempt", f"{by} has taken over from attempt {self.attempt}", retryable=False)

    def outcome(
        self, kind: str, reason: Reason, message: str = "", *, checkpoint: CheckpointRef | None = None
    ) -> Outcome:
        """An outcome of this attempt. A longer message is cut: sixty engines have a word each to say."""
        return Outcome.model_validate(
            {
                "stage": self.stage.name,
                "attempt": self.attempt,
                "outcome": kind,
                "reason": reason,
                "message": message[:MESSAGE_LENGTH],
                "checkpoint": checkpoint or self.progress.checkpoint,
            }
        )

    def relative(self, path: Path) -> str:
        """A path as contracts name it: relative to the job's state."""
        return str(path.relative_to(self.state.root))
