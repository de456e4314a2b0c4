"""A stage that crashed or was suspended and resumed equals an undisturbed one bit by bit: on the CPU, one rank."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from models import RanksHere
from seeded_rollouts import SeededRollouts

from rstar2_train.data.tiny import SMOKE, write_tiny
from rstar2_train.orchestrator.context import SuspendRequested
from rstar2_train.orchestrator.sessions import Sessions, stage_chat_format
from rstar2_train.orchestrator.stages import grpo, sft
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.weights.adapter_folder import ADAPTER, TENSORS
from tests.support.stage_attempt import create_attempt

STEPS, LAST = 4, 4
"""Steps of the stage, and the last update of the first attempt: after a crash a GRPO stage resumes from step 2."""
SPEC: dict[str, Any] = {
    "trainer": {"replicas": 1, "gpusPerReplica": 0, "tokensPerMicroBatch": 1024},
    "checkpoint": {"everySteps": 2},
    "grpo": {"promptsPerStep": 2, "rolloutsPerPrompt": 4, "keepPerPrompt": 2, "warmupSteps": 0, "learningRate": 1e-3},
    "seed": 11,
}
STAGES: dict[str, dict[str, Any]] = {
    "s": {"type": "SFT", "sft": {"data": "/data/sft.jsonl", "epochs": 16 / 300, "batchSize": 4, "heldOutRows": 8}},
    "g": {"type": "GRPO", "grpo": {"data": "/data/rl-1.jsonl", "steps": STEPS}},
}


class Crash(Exception):
    """The end of the first attempt."""


class EndingGroup(TrainerGroup):
    """A group on one rank in this process that calls `end` in its n-th update, if n is given."""

    def __init__(self, *, end: Callable[[], None], last: int | None = None, **options: Any) -> None:
        super().__init__(start_ranks=RanksHere, **options)  # type: ignore[arg-type]
        self._left, self._end = last, end

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._end()

    def sft_step(self, *args: Any, **options: Any) -> dict[str, float]:
        self._count()
        return super().sft_step(*args, **options)

    def grpo_step(self, *args: Any, **options: Any) -> dict[str, float]:
        self._count()
        return super().grpo_step(*args, **options)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with its tokenizer, and its data."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, seed=3, recipe=SMOKE)
    return folder


def losses(folder: Path) -> dict[int, list[float]]:
    """Return the loss of each report of a step, in order."""
    reports: dict[int, list[float]] = {}
    for line in journal_file(folder / "state").read_text().splitlines():
        values = json.loads(line).get("values", {})
        for name in sorted({"sft/loss", "sft/held_out_loss", "trainer/loss"} & values.keys()):
            reports.setdefault(json.loads(line)["step"], []).append(values[name])
    return reports


def crash() -> None:
    raise Crash


@pytest.mark.parametrize(
    ("letter", "lora", "ended"),
    [("s", None, Crash), ("g", None, Crash), ("g", {"rank": 8}, Crash), ("g", {"rank": 8}, SuspendRequested)],
)
async def test_resumed_stage_equals_the_undisturbed_one(
    letter: str, lora: dict[str, Any] | None, ended: type[Exception], tiny: Path, tmp_path: Path
) -> None:
    """The losses of all steps and the final model are the same bits; the repeated step too."""
    run = {"s": sft.run, "g": grpo.run}[letter]
    spec = {**SPEC, "trainer": {**SPEC["trainer"], "lora": lora}}

    async def attempt(name: str, number: int, last: int | None = None) -> Path:
        folder = tmp_path / name
        shutil.copytree(tiny, folder, dirs_exist_ok=True)
        ctx = create_attempt(folder, letter, attempt=number, **spec, stages=[{"name": "only", **STAGES[letter]}])
        end = crash if ended is Crash else ctx.stopping.set
        sessions = Sessions(
            trainer=partial(TrainerSession, start_group=partial(EndingGroup, last=last, end=end)),
            rollouts=lambda *_: SeededRollouts(),  # type: ignore[arg-type, return-value]
            chat_format=stage_chat_format,
        )
        outcome = await run(ctx, sessions)
        assert outcome.checkpoint is not None and outcome.checkpoint.step == STEPS
        return ctx.folder.model

    whole = await attempt("whole", 1)
    with pytest.raises(ended):
        await attempt("resumed", 1, last=LAST - (ended is SuspendRequested))
    resumed = await attempt("resumed", 2)
    for file in ["model.safetensors", *([f"{ADAPTER}/{TENSORS}"] if lora else [])]:
        assert (whole / file).read_bytes() == (resumed / file).read_bytes()
    undisturbed, again = losses(tmp_path / "whole"), losses(tmp_path / "resumed")
    assert undisturbed.keys() == again.keys() == set(range(1, STEPS + 1))
    assert all({*again[step]} == {*undisturbed[step]} for step in again)
    if letter == "g":
        assert len(again[3]) == (2 if ended is Crash else 1), "the step after the checkpoint ran twice"
