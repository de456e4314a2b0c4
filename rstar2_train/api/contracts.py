"""What the processes of a job tell one another: progress, outcome, exit codes. Versioned by `apiVersion`.

The driver of a stage writes `progress` and `outcome`; the operator, `rstar2 run` and the terminal view read them.
"""

from __future__ import annotations

import enum
import json
import time
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from rstar2_train.api.base import API_VERSION, ApiModel, Name, Text
from rstar2_train.utils.files import write_atomically

MESSAGE_LENGTH: Final = 2048
"""Characters of an outcome's message."""
PROGRESS_KEY: Final = "progress.json"
PREPARE_KEY: Final = "prepare.json"
OUTCOME_PREFIX: Final = "outcome-"
ENDED_WELL: Final = ("completed", "advanced")
"""Outcomes after which the next stage may start."""


def outcome_key(stage: str) -> str:
    """Key of a stage's outcome in the progress ConfigMap, beside PROGRESS_KEY and PREPARE_KEY."""
    return f"{OUTCOME_PREFIX}{stage}.json"


class ExitCode(enum.IntEnum):
    """Exit codes of a stage driver. Anything else, or no outcome beside it, is a crash."""

    DONE = 0
    """Completed or advanced."""
    DEFECT = 70
    """A bug: an exception that nothing foresaw."""
    SUSPENDED = 75
    """Asked to stop, and resumable."""
    RETRYABLE = 76
    """Infrastructure failed; another attempt may succeed."""
    CONFIGURATION = 78
    """Configuration or data is wrong; another attempt cannot succeed."""


Reason = Literal[
    "Completed", "StepsReached", "TruncationSettled", "AllCorrect", "Collapsed", "Suspended",
    "EngineUnavailable", "JudgeUnavailable", "RanksLost", "StorageFull", "StaleAttempt", "BadConfiguration", "BadData",
    "NothingToTrain", "HubUnavailable", "Defect", "Crashed",
]  # fmt: skip
"""Closed list of outcome reasons."""


class WireModel(ApiModel, extra="ignore"):
    """What one process tells another, whose image may be older: it takes what it knows."""


class CheckpointRef(WireModel):
    """A complete checkpoint."""

    path: Text
    """Folder, relative to the job's storage."""
    step: int
    """The step after which it was written."""


class Progress(WireModel):
    """What a stage has reached; written on a step's change, at most every 10 s in a cluster."""

    api_version: Literal["rstar2.dev/v1alpha1"] = API_VERSION
    stage: Name
    attempt: int
    phase: Literal["Starting", "Training", "Rollout", "Evaluating", "Filtering", "Finished"] = "Starting"
    step: int = 0
    total_steps: int | None = None
    rollouts_done: int = 0
    """Rollouts of the present batch that have ended, and how many it has."""
    rollouts_total: int = 0
    metrics: Annotated[dict[str, float], Field(max_length=32)] = {}
    checkpoint: CheckpointRef | None = None
    mlflow_run_id: str | None = None
    estimated_remaining_seconds: float | None = None
    updated_at: float = Field(default_factory=time.time)


class AttemptRecord(ApiModel):
    """Which attempt of a stage may write into its folder."""

    attempt: int
    """1 the first."""
    uid: Text | None = None
    """Of the job that it belongs to: a job that is deleted and made again counts from 1, in the same storage."""


class Outcome(WireModel):
    """How an attempt of a stage ended. At most 4 KB as JSON, so that a termination message can carry a copy."""

    api_version: Literal["rstar2.dev/v1alpha1"] = API_VERSION
    stage: Name
    attempt: int
    outcome: Literal["completed", "advanced", "suspended", "failed"]
    reason: Reason
    message: Annotated[str, StringConstraints(max_length=MESSAGE_LENGTH)] = ""
    checkpoint: CheckpointRef | None = None
    retryable: bool = False

    @property
    def ended_well(self) -> bool:
        """Whether the next stage may start."""
        return self.outcome in ENDED_WELL

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that goes with this outcome."""
        if self.ended_well:
            return ExitCode.DONE
        if self.outcome == "suspended":
            return ExitCode.SUSPENDED
        if self.reason in ("Defect", "Crashed"):
            return ExitCode.DEFECT
        return ExitCode.RETRYABLE if self.retryable else ExitCode.CONFIGURATION


class StageFailed(Exception):
    """Raised anywhere in a driver to end its attempt with a reason from the closed list."""

    def __init__(self, reason: Reason, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.retryable = retryable


def write_model(path: Path, model: ApiModel) -> None:
    """Write a contract as JSON, atomically."""
    write_atomically(path, json.dumps(model.model_dump(mode="json", exclude_none=True), indent=1) + "\n")
