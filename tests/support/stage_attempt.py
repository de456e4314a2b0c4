"""A stage attempt without processes: the real context, folders and checkpoints, and a fake trainer.

The weights of the fake trainer are one number. `create_attempt` creates the context of an attempt, `fake_sessions` the
sessions that a stage runs with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import check
from rstar2_train.orchestrator.context import Endpoints, StageContext
from rstar2_train.orchestrator.sessions import Sessions
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.checkpoint import CheckpointManifest
from rstar2_train.trainer.types import TrainState
from tests.support.simulated_cluster import manifest


class FakeTrainerGroup:
    """Replaces `TrainerGroup`: its weights are a number, and a step adds one to it."""

    def __init__(
        self,
        *,
        on_step: Callable[[FakeTrainerGroup], None] = lambda _: None,
        on_save: Callable[[int], None] = lambda _: None,
        **_: object,
    ) -> None:
        """`on_step`: called at the end of a step; `on_save`: called with the step of a checkpoint that is written."""
        self.weights = 0.0
        self.snapshot = 0.0
        self.fresh_optimizer = True
        self.asleep = False
        self.groups: Any = None
        """The sequences of the last step."""
        self._on_step = on_step
        self._on_save = on_save

    def load(self, model_dir: Path, *, optimizer: object) -> None:
        self.weights = json.loads((model_dir / "weights.json").read_text())

    def restore(self, folder: Path, reset_optimizer: bool = False) -> TrainState:
        saved = checkpoint.verify(folder)
        self.weights = json.loads((folder / "weights.json").read_text())
        self.fresh_optimizer = reset_optimizer
        return TrainState(step=saved.step, extra=saved.extra)

    def sleep(self) -> None:
        self.asleep = True

    def wake_up(self) -> None:
        self.asleep = False

    def grpo_step(self, groups: object, *, lr: float, **_: object) -> dict[str, float]:
        assert not self.asleep
        self.weights += 1
        self.groups = groups
        self._on_step(self)
        return {"loss": 0.0}

    def snapshot_state(self) -> None:
        assert not self.asleep
        self.snapshot = self.weights

    def write_checkpoint(
        self, folder: Path, *, step: int, extra: dict[str, Any], check: Callable[[], None] = lambda: None
    ) -> None:
        with checkpoint.write_folder(folder, durable=False) as aside:
            self._on_save(step)
            (aside / "weights.json").write_text(json.dumps(self.snapshot))
            checkpoint.write_manifest(aside, CheckpointManifest(step=step, extra=extra, ranks=1, files={}))
            check()

    def export(self, folder: Path, *, for_engines: bool = False, stop_ids: Sequence[int] = ()) -> None:
        assert not self.asleep
        write_weights(folder, round(self.weights))

    def close(self) -> None:
        pass


def fake_sessions(rollouts: object, *, chat_format: object = None, **hooks: Callable[..., None]) -> Sessions:
    """Return sessions with the fake trainer, with `rollouts` and with `chat_format`.

    `hooks`: `on_step` and `on_save` of FakeTrainerGroup.
    """
    trainer: Any = partial(TrainerSession, start_group=partial(FakeTrainerGroup, **hooks))  # type: ignore[arg-type]
    return Sessions(
        trainer=trainer,
        rollouts=lambda *_: rollouts,  # type: ignore[arg-type, return-value]
        chat_format=lambda *_: chat_format,  # type: ignore[arg-type, return-value]
    )


def write_weights(folder: Path, weights: float) -> None:
    """Write a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.json").write_text(json.dumps(weights))


NewAttempt = Callable[..., StageContext]
"""Type of the fixture `new_attempt`: stages as letters (see `simulated_cluster.manifest`), the stage's number, fields
of spec."""


def create_attempt(
    folder: Path, stages: str = "g", number: int = 0, /, *, attempt: int = 1, **spec: Any
) -> StageContext:
    """Return the context of an attempt. The job starts from weights 0 and has its data in `folder`."""
    state = JobState(folder / "state")
    content = json.dumps(manifest(stages, **{"model": {"source": str(folder / "base")}, **spec}))
    job, problems = check(json.loads(content.replace('"/data/', f'"{folder}/')))
    assert job is not None, problems
    write_weights(folder / "base", 0.0)
    stage = job.spec.stages[number]
    write_model(state.stage(stage.name).attempt_file, AttemptRecord(attempt=attempt, uid=job.metadata.uid))
    return StageContext(job, stage, attempt, state, Endpoints(), Tracker.for_job(job, state.root))
