"""Contracts between the processes of a job: progress, outcome, attempt record, exit codes.

    orchestrator ──progress.json, outcome.json──> state directory ──> mirror ──ConfigMap──> operator
                                                        └──────> `rstar2 run`, terminal view, report

The contracts have a version of their own, `contractVersion`, because the processes of one job may run images of
different versions. A reader ignores unknown fields, reads every version up to its own, and rejects a newer one.
"""

from __future__ import annotations

import enum
import json
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from rstar2_train.api.base import ApiModel, Name, Text
from rstar2_train.utils.files import write_atomically

CONTRACT_VERSION: Final = 1
"""Version that this code writes, and the newest that it reads. It changes only with the meaning of a field."""
MESSAGE_LENGTH: Final = 2048
"""Maximum characters of an outcome's message."""
ENGINE_START_SECONDS: Final = 600.0
"""Longest start of an engine on one machine, also after a kill: a large model is loaded and compiled."""
SEQUENCE_TOKENS: Final = "RSTAR2_SEQUENCE_TOKENS"
"""Environment variable of an engine: tokens of the longest sequence. Default: those of the job file."""
PROGRESS_KEY: Final = "progress.json"
PREPARE_KEY: Final = "prepare.json"
OUTCOME_PREFIX: Final = "outcome-"
ENDED_WELL: Final = ("completed", "advanced")
"""Outcomes after which the next stage may start."""


def outcome_key(stage: str) -> str:
    """Return the key of a stage's outcome in the progress ConfigMap."""
    return f"{OUTCOME_PREFIX}{stage}.json"


class ExitCode(enum.IntEnum):
    """Exit codes of an orchestrator. Any other code, or a missing outcome, is a crash."""

    DONE = 0
    """The outcome is completed or advanced."""
    DEFECT = 70
    """A bug: an unexpected exception."""
    SUSPENDED = 75
    """The attempt was stopped on request and can be resumed."""
    RETRYABLE = 76
    """Infrastructure failed; another attempt may succeed."""
    CONFIGURATION = 78
    """Configuration or data is wrong; another attempt cannot succeed."""


Reason = Literal[
    "Completed", "StepsReached", "TruncationSettled", "AllCorrect", "Collapsed", "OffPolicy", "Suspended",
    "EngineUnavailable", "JudgeUnavailable", "ServerUnavailable", "RanksLost", "StorageFull", "StaleAttempt",
    "BadConfiguration", "BadData", "NothingToTrain", "HubUnavailable", "StorageUnavailable", "Defect",
    "Crashed",
]  # fmt: skip
"""Closed list of outcome reasons."""


class WireModel(ApiModel, extra="ignore"):
    """Base of inter-process messages; unknown fields are ignored for version skew."""


class Contract(WireModel):
    """Base of messages with a version."""

    contract_version: int = CONTRACT_VERSION
    """Version of the contract. Written by every process; after reading, always the reader's own."""

    @model_validator(mode="before")
    @classmethod
    def _reject_newer(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        version = data.get("contractVersion", CONTRACT_VERSION)
        if not isinstance(version, int) or version > CONTRACT_VERSION:
            raise ValueError(
                f"contractVersion is {version}, but this process reads versions up to {CONTRACT_VERSION}; run the "
                "operator, `rstar2` and the images of the job in the same version"
            )
        return {key: value for key, value in data.items() if key != "contractVersion"}


Amount = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""A number within the bounds of the job's status, which the operator copies it into."""
Moment = Annotated[float, Field(ge=0, le=1e11)]
"""Seconds, or seconds since the epoch, of which a timestamp can be made."""


class CheckpointRef(WireModel):
    """A complete checkpoint."""

    path: Text
    """Directory, relative to the job's state directory."""
    step: Amount
    """Step after which it was written."""


class Progress(Contract):
    """Progress of a stage attempt; written when a step changes, in a cluster at most every 10 s."""

    stage: Name
    attempt: Amount
    phase: Literal["Starting", "Training", "Rollout", "Evaluating", "Filtering", "Finished"] = "Starting"
    step: Amount = 0
    """Steps done."""
    total_steps: Amount | None = None
    """Steps of the stage; None until they are known."""
    rollouts_done: Amount = 0
    """Finished rollouts of the current batch."""
    rollouts_total: Amount = 0
    """Rollouts of the current batch."""
    demonstrations_done: Amount = 0
    """Tokenised demonstrations of an SFT stage that starts."""
    demonstrations_total: Amount = 0
    """Its demonstrations; 0 until they are known."""
    metrics: Annotated[dict[str, float], Field(max_length=32)] = {}
    """Main metrics of the last step."""
    checkpoint: CheckpointRef | None = None
    """Last checkpoint."""
    mlflow_run_id: Annotated[str, StringConstraints(max_length=128)] | None = None
    """MLflow run of the stage."""
    estimated_remaining_seconds: Moment | None = None
    """Estimated seconds until the stage ends."""
    unreachable: Annotated[dict[str, str], Field(max_length=8)] = {}
    """Role -> error, of a service that has not answered for some time while rollouts wait for it."""
    updated_at: Moment = Field(default_factory=time.time)
    """Seconds since the epoch when this was written."""


class AttemptRecord(Contract):
    """The attempt of a stage that may write into the stage's directory."""

    attempt: int
    """Number of the attempt, from 1."""
    uid: Text | None = None
    """UID of its job. A deleted and recreated job counts from 1 again, in the same storage."""


class Outcome(Contract):
    """Result of a stage attempt. At most 4 KB as JSON, so that a termination message can have a copy."""

    stage: Name
    attempt: Amount
    outcome: Literal["completed", "advanced", "suspended", "failed"]
    reason: Reason
    message: Annotated[str, StringConstraints(max_length=MESSAGE_LENGTH)] = ""
    checkpoint: CheckpointRef | None = None
    """Last checkpoint."""
    retryable: bool = False
    """Whether another attempt may succeed."""

    @property
    def ended_well(self) -> bool:
        """Whether the next stage may start."""
        return self.outcome in ENDED_WELL

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of an orchestrator with this outcome."""
        if self.ended_well:
            return ExitCode.DONE
        if self.outcome == "suspended":
            return ExitCode.SUSPENDED
        if self.reason in ("Defect", "Crashed"):
            return ExitCode.DEFECT
        return ExitCode.RETRYABLE if self.retryable else ExitCode.CONFIGURATION


class StageFailed(Exception):
    """Raised anywhere in an orchestrator to end its attempt with a reason from the closed list."""

    def __init__(self, reason: Reason, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.retryable = retryable


def write_model(path: Path, model: ApiModel) -> None:
    """Write a message or a job as JSON, atomically."""
    write_atomically(path, json.dumps(model.model_dump(mode="json", exclude_none=True), indent=1) + "\n")
