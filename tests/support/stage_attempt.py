"""A stage attempt without processes: the real context, folders and checkpoints, and ranks that hold one number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import check
from rstar2_train.orchestrator.context import Endpoints, StageContext
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.checkpoint import CheckpointManifest
from rstar2_train.trainer.types import TrainState
from tests.support.simulated_cluster import manifest


class Group:
    """In place of `TrainerGroup`: its weights are a number that a step adds one to."""

    on_step: ClassVar[Callable[[Group], None]] = staticmethod(lambda _: None)
    """What happens at the end of a step; for tests to replace."""
    on_save: ClassVar[Callable[[int], None]] = staticmethod(lambda _: None)
    """What happens when a checkpoint of a step is written, in a thread of its own; the same."""

    def __init__(self, **_: object) -> None:
        self.weights = 0.0
        self.fresh_optimizer = True

    def load(self, model_dir: Path, *, optimizer: object) -> None:
        self.weights = json.loads((model_dir / "weights.json").read_text())

    def restore(self, folder: Path, reset_optimizer: bool = False) -> TrainState:
        found = checkpoint.verify(folder)
        self.weights = json.loads((folder / "weights.json").read_text())
        self.fresh_optimizer = reset_optimizer
        return TrainState(step=found.step, extra=found.extra)

    def grpo_step(self, groups: object, *, lr: float, **_: object) -> dict[str, float]:
        self.weights += 1
        type(self).on_step(self)
        return {"loss": 0.0}

    def save(self, folder: Path, *, step: int, extra: dict[str, Any]) -> None:
        with checkpoint.write_folder(folder, durable=False) as aside:
            type(self).on_save(step)
            (aside / "weights.json").write_text(json.dumps(self.weights))
            checkpoint.write_manifest(aside, CheckpointManifest(step=step, extra=extra, ranks=1, files={}))

    def export(self, folder: Path, *, durable: bool = True) -> None:
        write_weights(folder, round(self.weights))

    def close(self) -> None:
        pass


def write_weights(folder: Path, weights: float) -> None:
    """A model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.json").write_text(json.dumps(weights))


Begin = Callable[..., StageContext]
"""Of the fixture `begin`: stages by letters as `simulated.manifest` takes them, the stage's number, fields of spec."""


def begin_attempt(folder: Path, stages: str = "g", number: int = 0, *, attempt: int = 1, **spec: Any) -> StageContext:
    """The context of an attempt, whose job starts from weights 0 and has its data in `folder`."""
    state = JobState(folder / "state")
    content = json.dumps(manifest(stages, **{"model": {"source": str(folder / "base")}, **spec}))
    job, problems = check(json.loads(content.replace('"/data/', f'"{folder}/')))
    assert job is not None, problems
    write_weights(folder / "base", 0.0)
    stage = job.spec.stages[number]
    write_model(state.stage(stage.name).attempt_file, AttemptRecord(attempt=attempt, uid=job.metadata.uid))
    return StageContext(job, stage, attempt, state, Endpoints(), Tracker.of(job, state.root))
