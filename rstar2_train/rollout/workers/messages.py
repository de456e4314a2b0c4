"""The messages between the orchestrator and a rollout worker.

They arrive in the order in which they were sent: a worker sees the events of a slot as the scheduler decided them.
Rollouts, slots and sets of rollouts have numbers, which are unique per worker.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from rstar2_train.data.problems import Problem
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_protocols import Connect
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.context import SetSettings
from rstar2_train.rollout.trajectory import Trajectory


class WorkerSetup(NamedTuple):
    """To a worker, once: what all its rollouts share."""

    chat_format: ChatFormat
    engine_token: str
    judge_url: str
    judge_token: str | None
    judge_patience: float
    """`patience_seconds` of the judge's client."""
    connect: Connect = EngineClient
    """Creates the client of an engine, as in `EnginePool`."""


class KnownVersions(NamedTuple):
    """To a worker, once: the weight versions up to now."""

    version: str | None
    numbers: Mapping[str, int]
    """Number of the last push of each version."""


class VersionPushed(NamedTuple):
    """To a worker: a version that is about to be pushed. It answers with `VersionKnown`."""

    version: str
    number: int


class VersionKnown(NamedTuple):
    """To the orchestrator: the worker accepts tokens of the version."""

    number: int


class SetOpened(NamedTuple):
    """To a worker: a set of rollouts starts."""

    number: int
    settings: SetSettings


class SetClosed(NamedTuple):
    """To a worker: the rollouts of a set stop."""

    number: int


class PromptAdded(NamedTuple):
    """To a worker: a problem of a set, once for all its samples."""

    set: int
    problem: Problem
    prompt_ids: array[int]


class RolloutStarted(NamedTuple):
    """To a worker: run a rollout."""

    number: int
    set: int
    prompt_id: str
    sample: int


class RolloutFinished(NamedTuple):
    """To the orchestrator: a scored or lost rollout, without the tokens of its prompt."""

    number: int
    trajectory: Trajectory


class RolloutFailed(NamedTuple):
    """To the orchestrator: a rollout raised an error, which ends its set."""

    number: int
    error: Exception


class SlotRequested(NamedTuple):
    """To the orchestrator: arguments as of `AdmissionQueue.request_slot`."""

    slot: int
    tokens: int
    prompt_tokens: int
    group: Hashable


class TurnStarting(NamedTuple):
    """To the orchestrator: a turn of a slot starts with `context` tokens. It answers with `TurnStarted`."""

    slot: int
    context: int


class TurnStarted(NamedTuple):
    """To a worker: the engine of the slot is decided."""

    slot: int


class SlotReleased(NamedTuple):
    """To the orchestrator: the slot is free. `tokens`: length of the trajectory with its prompt, if it finished."""

    slot: int
    tokens: int | None


class SlotAssigned(NamedTuple):
    """To a worker: the slot waits no longer."""

    slot: int
    engine: str


class SlotUnassigned(NamedTuple):
    """To a worker: the slot waits for another engine. `is_displaced`: the policy moved it away."""

    slot: int
    is_displaced: bool


class SlotMoved(NamedTuple):
    """To a worker: the turn that starts now runs in another engine."""

    slot: int
    engine: str


class SlotFailed(NamedTuple):
    """To a worker: no engine serves, so that the wait fails."""

    slot: int
    error: str


class EngineFailed(NamedTuple):
    """To the orchestrator: a request to an engine failed."""

    engine: str
    error: str


class LagMeasured(NamedTuple):
    """To the orchestrator, every second: lag of the worker's event loop, in seconds; also its sign of life."""

    samples: list[float]


ToWorker = (
    WorkerSetup
    | KnownVersions
    | VersionPushed
    | SetOpened
    | SetClosed
    | PromptAdded
    | RolloutStarted
    | TurnStarted
    | SlotAssigned
    | SlotUnassigned
    | SlotMoved
    | SlotFailed
)
ToOrchestrator = (
    VersionKnown
    | RolloutFinished
    | RolloutFailed
    | SlotRequested
    | TurnStarting
    | SlotReleased
    | EngineFailed
    | LagMeasured
)
