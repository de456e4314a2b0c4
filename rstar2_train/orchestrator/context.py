"""The context of one stage attempt: the job, its state directory, the endpoints, progress and stop requests.

Created once by `__main__` and passed to the stage and its sessions; they use no other globals.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

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
from rstar2_train.orchestrator.device_sharing import DeviceSharing
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.utils.auth import ENGINE_TOKEN, read_secret

_REPORT_INTERVAL = 0.5
"""Seconds between two progress reports inside a step."""


Result = TypeVar("Result")


class SuspendRequested(Exception):
    """The process received SIGTERM or SIGINT; raised between two steps or inside one."""


@dataclass(frozen=True)
class Endpoints:
    """Addresses of the other roles."""

    engines: tuple[str, ...] = ()
    """Base URLs of vLLM engines."""
    served_model: str = ""
    """Name under which an engine of another project serves the model; empty: engines of the job."""
    engine_service: str = ""
    """`HOST:PORT` whose addresses are engines too, looked up periodically; empty: only `engines`."""
    teacher: tuple[str, ...] = ()
    """Base URLs of the teacher's engines."""
    judge: str = ""
    """Base URL of the judge API."""
    environments: tuple[str, ...] = ()
    """`HOST:PORT` of servers of the environment, or of headless Services; looked up periodically."""
    agent_port: int = 0
    """Port of the endpoint of an agent's programs in pods; 0: they run on this machine."""
    ray: str | None = None
    """Ray address; None: a private Ray on this machine."""
    bucket: bool = False
    """Whether the pods of the job have no common disk: engines read weights from the job's bucket, and trainer
    ranks on other hosts upload their checkpoints there; their other files travel between the hosts."""
    share_device: bool = False
    """Whether trainer and engines time-share a device."""


@dataclass
class StageContext:
    """One attempt of one stage."""

    job: AgenticRLJob
    stage: Stage
    attempt: int
    state: JobState
    endpoints: Endpoints
    tracker: Tracker
    tokenizer: Path | None = None
    """Folder of the tokenizer; None: that of the model."""
    keep_samples: bool = False
    """Whether the samples of a finished measurement are kept, so that a larger one reuses them."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by SIGTERM and SIGINT: write a checkpoint, then exit as suspended."""
    progress: Progress = field(init=False)
    device: DeviceSharing = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(stage=self.stage.name, attempt=self.attempt)
        shared = self.endpoints.engines if self.endpoints.share_device else ()
        self.device = DeviceSharing(shared, token=read_secret(ENGINE_TOKEN) or "", lock=self.state.device_lock)

    @property
    def folder(self) -> StageState:
        """The folder of the stage."""
        return self.state.stage(self.stage.name)

    @property
    def seed(self) -> int:
        """The seed of the job."""
        return self.job.spec.seed

    def step_seed(self, step: int) -> tuple[int | str, ...]:
        """Return the name of a step's random numbers: job seed, stage and step. Stages share no random numbers."""
        return (self.seed, self.stage.name, step)

    def report(self, *, metrics: Mapping[str, float] | None = None, **changes: object) -> None:
        """Change fields of the progress and write it. Skips metrics that are not finite, which JSON cannot hold."""
        if metrics is not None:
            changes["metrics"] = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.progress = self.progress.model_copy(update=changes | {"updated_at": time.time()})
        write_model(self.state.progress_file, self.progress)

    def install_signal_handlers(self) -> None:
        """Let SIGTERM and SIGINT request a suspension. Call again after Ray started: it installs its own handlers."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self.stopping.set)

    async def unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of `work`. A stop request cancels `work` and raises SuspendRequested."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopped = not working.done()
        finally:
            stopping.cancel()
            working.cancel()  # no effect on a finished task
            await asyncio.gather(working, return_exceptions=True)
        if stopped:
            raise SuspendRequested
        return working.result()

    def report_rollouts(self, done: int, total: int) -> None:
        """Report the number of finished rollouts of the current batch, at most twice per second."""
        if self._is_due(done, total):
            self.report(rollouts_done=done, rollouts_total=total)

    def report_unreachable(self, role: str, error: str | None) -> None:
        """Report that a service does not answer, or with None that it answers again."""
        others = {name: text for name, text in self.progress.unreachable.items() if name != role}
        self.report(unreachable=others if error is None else {**others, role: error[:MESSAGE_LENGTH]})

    def report_demonstrations(self, done: int, total: int) -> None:
        """Report the number of tokenised demonstrations, at most twice per second."""
        if self._is_due(done, total):
            self.report(demonstrations_done=done, demonstrations_total=total)

    def _is_due(self, done: int, total: int) -> bool:
        """Return whether a count is written: the last one always, others at intervals."""
        return done >= total or time.time() - self.progress.updated_at >= _REPORT_INTERVAL

    def check_stop(self) -> None:
        """Raise SuspendRequested if the process received a stop signal."""
        if self.stopping.is_set():
            raise SuspendRequested

    def check_current(self) -> None:
        """Raise StageFailed if a newer attempt of the stage exists: this attempt must not write any more."""
        current = self.folder.attempt()
        if current != AttemptRecord(attempt=self.attempt, uid=self.job.metadata.uid):
            owner = f"attempt {current.attempt} of job {current.uid}" if current else "no attempt (its file is missing)"
            message = f"attempt {self.attempt} is stale: the stage belongs to {owner}"
            raise StageFailed("StaleAttempt", message, retryable=False)

    def outcome(
        self, kind: str, reason: Reason, message: str = "", *, checkpoint: CheckpointRef | None = None
    ) -> Outcome:
        """Return an outcome of this attempt. The message is truncated: with many engines it can be long."""
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
        """Return a path as the contracts name it: relative to the job's state directory."""
        return str(path.relative_to(self.state.root))
