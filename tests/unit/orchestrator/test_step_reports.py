"""A finished step is in the tracking journal, also if the process is killed right after its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rstar2_train.data.problems import Problem
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.stages import grpo
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.tracker import journal_file
from tests.support.fake_rollouts import CharacterFormat, FakeRollouts, rollout
from tests.support.stage_attempt import FakeTrainerGroup, fake_sessions


def metric(ctx: StageContext, name: str) -> dict[int, float]:
    """Return the values of a metric in the journal, by step."""
    events = map(json.loads, journal_file(ctx.state.root).read_text().splitlines())
    values = [(event["step"], event["values"]) for event in events if event["kind"] == "metrics"]
    return {step: value[name] for step, value in values if name in value}


@pytest.mark.parametrize("stopped_at", [None, 2])
async def test_grpo_step_is_reported_before_its_checkpoint(
    stage: Callable[..., StageContext], stopped_at: int | None
) -> None:
    """No attempt repeats a step with a checkpoint: its metrics are there first, also at the last step and a stop."""
    ctx, saved = stage(), list[int]()

    def on_save(step: int) -> None:
        assert step in metric(ctx, "reward/mean"), f"step {step} has a checkpoint and no metrics"
        saved.append(step)

    def on_step(group: FakeTrainerGroup) -> None:
        if group.weights == stopped_at:
            ctx.stopping.set()

    sessions = fake_sessions(FakeRollouts(), chat_format=CharacterFormat(), on_save=on_save, on_step=on_step)
    if stopped_at is None:
        await grpo.run(ctx, sessions)
    else:
        with pytest.raises(SuspendRequested):
            await grpo.run(ctx, sessions)
    assert saved == list(range(1, (stopped_at or 4) + 1))


async def test_grpo_step_without_update_reports_zero_updates(stage: Callable[..., StageContext]) -> None:
    """A step in which no group has both correct and wrong rollouts differs from one whose metrics are lost."""

    class EqualRollouts(FakeRollouts):
        async def sample_groups(
            self, problems: Sequence[Problem], *, on_group: Callable[[list[Trajectory]], None], **more: Any
        ) -> None:
            for problem in problems:
                on_group([rollout(problem, 0) for _ in range(more["samples"])])

    ctx = stage()
    await grpo.run(ctx, fake_sessions(EqualRollouts(), chat_format=CharacterFormat()))
    for name in ("updates", "groups", "sequences"):
        assert metric(ctx, f"trainer/{name}") == dict.fromkeys(range(1, 5), 0.0)
