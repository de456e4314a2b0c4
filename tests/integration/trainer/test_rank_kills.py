"""SIGKILL of a rank at points of a step and of a checkpoint: a stage with real ranks, from start to end."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rank_kills import KILLED, Point, killed_at
from safetensors.torch import load_file
from seeded_rollouts import SeededRollouts

from rstar2_train.data.tiny import SMOKE, write_tiny
from rstar2_train.orchestrator.sessions import Sessions, stage_chat_format
from rstar2_train.orchestrator.stages import grpo
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.actors import RankActors, RanksLost
from rstar2_train.trainer.trainer_group import TrainerGroup
from tests.support.stage_attempt import create_attempt

STEPS = 6
SPEC: dict[str, Any] = {
    "checkpoint": {"everySteps": 1, "keepLast": 2},
    "grpo": {"promptsPerStep": 2, "rolloutsPerPrompt": 4, "keepPerPrompt": 2, "warmupSteps": 0, "learningRate": 1e-3},
    "stages": [{"name": "only", "type": "GRPO", "grpo": {"data": "/data/rl-1.jsonl", "steps": STEPS}}],
    "seed": 11,
}
RANKS = (2, 4, 1)
"""Numbers of ranks of successive attempts."""
FIRST = Point("grpo", "operation", 100, call=3)
"""In the third step, when the checkpoint of the first one is complete."""
POINTS = [
    Point("grpo", "collective", 1),
    Point("grpo", "operation", 100),
    Point("grpo", "collective", 4),
    Point("grpo", "operation", 600),
    Point("grpo", "operation", 1000),
    Point("grpo", "collective", 9),
    Point("grpo", "end"),
    Point("snapshot_state", "start"),
    Point("snapshot_state", "operation", 20),
    Point("snapshot_state", "end"),
    Point("write_checkpoint", "start"),
    Point("write_checkpoint", "file", 1),
    Point("write_checkpoint", "file", 2),
    Point("write_checkpoint", "file", 2),
    Point("write_checkpoint", "collective", 1),
    Point("write_checkpoint", "collective", 2),
    Point("write_checkpoint", "end"),
    Point("load", "operation", 50),
    Point("restore", "start"),
    Point("find_damage", "file", 1),
    Point("restore", "file", 2),
    Point("grpo", "collective", 5, call=2),
    Point("write_checkpoint", "file", 1, call=2),
    Point("grpo", "operation", 400, call=2),
    Point("export", "operation", 10),
]


@dataclass(frozen=True)
class Attempt:
    """The result of an attempt."""

    resumed: int
    """Step after which it resumed."""
    norms: dict[int, float]
    """Norm of the gradient of each finished step."""


class Stage:
    """One GRPO stage over several attempts."""

    def __init__(self, folder: Path, tiny: Path) -> None:
        shutil.copytree(tiny, folder)
        self.folder = folder
        self.attempts = 0
        self.sampled: Counter[str] = Counter()
        self.model = folder / "none"
        self.checkpoints = folder / "none"

    async def run(self, ranks: int, point: Point | None = None) -> Attempt:
        """Run an attempt. With a point, a rank must die there."""
        self.attempts += 1
        trainer = {"replicas": ranks, "gpusPerReplica": 0, "tokensPerMicroBatch": 256, "threads": 1}
        ctx = create_attempt(self.folder, "g", attempt=self.attempts, trainer=trainer, **SPEC)
        self.model, self.checkpoints = ctx.folder.model, ctx.folder.checkpoints
        resumed = self.newest
        reported = len(self.norms())
        start = RankActors
        if point is not None:
            process = killed_at(point, victim=self.attempts % ranks, checkpoints=self.checkpoints)
            start = partial(RankActors, process=process)  # type: ignore[assignment]
        sessions = Sessions(
            trainer=partial(TrainerSession, start_group=partial(TrainerGroup, start_ranks=start)),
            rollouts=lambda *_: SeededRollouts(self.sampled),  # type: ignore[arg-type, return-value]
            chat_format=stage_chat_format,
        )
        if point is None:
            await grpo.run(ctx, sessions)
        else:
            with pytest.raises(RanksLost, match=rf"crashed during ({point.method}|grpo|write_checkpoint)"):
                await grpo.run(ctx, sessions)
            self.checkpoints.with_name(KILLED).unlink()  # the rank reached the point
        return Attempt(resumed, dict(self.norms()[reported:]))

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint."""
        return max((step for step, _ in checkpoint.list_checkpoints(self.checkpoints)), default=0)

    def norms(self) -> list[tuple[int, float]]:
        """Return the norm of the gradient of each report of a step, in order."""
        file = journal_file(self.folder / "state")
        lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
        return [
            (line["step"], line["values"]["trainer/grad_norm"])
            for line in lines
            if "trainer/grad_norm" in line.get("values", {})
        ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with its tokenizer, and its data."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, seed=3, recipe=SMOKE)
    return folder


@pytest.mark.parametrize("points", [pytest.param([], id="one"), pytest.param(POINTS, id="all", marks=pytest.mark.slow)])
async def test_killed_rank_costs_at_most_two_steps(points: list[Point], tiny: Path, tmp_path: Path) -> None:
    """Over kills and numbers of ranks no rollout is sampled again, no step is skipped, and the weights are the same."""
    whole = Stage(tmp_path / "whole", tiny)
    undisturbed = (await whole.run(1)).norms
    assert sorted(undisturbed) == list(range(1, STEPS + 1))
    stage, finished = Stage(tmp_path / "killed", tiny), 0
    for number, point in enumerate([FIRST, *points, None]):
        attempt = await stage.run(RANKS[number % len(RANKS)], point)
        # A kill while a checkpoint is written costs its step, and the one that finished meanwhile.
        assert finished - 2 <= attempt.resumed <= finished, point
        steps = list(attempt.norms)
        assert steps == list(range(attempt.resumed + 1, attempt.resumed + 1 + len(steps))), point
        assert attempt.norms == pytest.approx({step: undisturbed[step] for step in steps}, rel=1e-3)
        finished = max([attempt.resumed, *steps])
    assert finished == STEPS
    print(f"{len(points) + 1} kills, {stage.attempts} attempts")
    assert set(stage.sampled.values()) == {1}
    assert stage.sampled == whole.sampled
    expected, actual = load_file(whole.model / "model.safetensors"), load_file(stage.model / "model.safetensors")
    source = load_file(tiny / "base" / "model.safetensors")
    change = sum((expected[name] - source[name]).square().sum() for name in expected)
    difference = sum((expected[name] - actual[name]).square().sum() for name in expected)
    print(f"difference of the weights: {float((difference / change).sqrt()):.1e} of their change")
    assert (difference / change).sqrt() < 1e-4
