"""Which checkpoint is the best, and what a stage hands on."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import pytest

from rstar2_train.api.contracts import Outcome, write_model
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.types import OptimizerConfig
from tests.support.stage_attempt import Begin, Group

FALLING = [0.5, 0.5, 0.9, 0.5, 0.8, 0.8, 0.1, 0.1]
"""Mean reward of each step; step 3 alone has the highest, the checkpoint of step 4 made the best two steps."""


async def train(ctx: StageContext, rewards: Sequence[float], *, every: int, until: int | None = None) -> Outcome | None:
    """Steps from where the stage is to the end of `rewards` (step 0 first), or to a death after `until`."""
    async with TrainerSession(ctx, OptimizerConfig(), initial_policy(ctx.job, ctx.stage, ctx.state)) as training:
        for step in range(await training.begun(), len(rewards) if until is None else until):
            training.group.grpo_step([], lr=0.0)
            training.rewards.append(rewards[step])
            if (step + 1) % every == 0:
                await training.checkpoint(step + 1)
        if until is not None:
            return None
        return await training.hand_on(len(rewards), reason="Collapsed")


def kept(ctx: StageContext) -> list[int]:
    return [step for step, _ in checkpoint.list_checkpoints(ctx.folder.checkpoints)]


@pytest.mark.parametrize("dies_after", [None, 3, 4, 5, 6, 7])
async def test_a_collapse_hands_on_the_checkpoint_whose_own_steps_were_the_best(
    begin: Begin, dies_after: int | None
) -> None:
    spec = {"checkpoint": {"everySteps": 2, "keepLast": 1}}
    if dies_after is not None:
        await train(begin(**spec), FALLING, every=2, until=dies_after)
    ctx = begin(attempt=2, **spec)
    outcome = await train(ctx, FALLING, every=2)
    assert outcome is not None and outcome.checkpoint is not None
    assert (outcome.outcome, outcome.reason, outcome.checkpoint.step) == ("advanced", "Collapsed", 4)
    assert (ctx.folder.model / "weights.json").read_text() == "4"
    assert kept(ctx) == [4, 8], "the best is kept beside the last"


async def test_the_weights_that_an_update_has_broken_are_not_credited_with_the_rewards_before_it(begin: Begin) -> None:
    outcome = await train(begin(checkpoint={"everySteps": 1}), [0.6, 0.7, 0.8, 0.1, 0.1], every=1)
    assert outcome is not None and outcome.checkpoint is not None
    assert outcome.checkpoint.step == 2, "the third update made the weights that got 0.1"


async def test_a_collapse_with_no_checkpoint_before_it_is_said(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        outcome = await train(begin(), FALLING, every=100)
    assert outcome is not None and outcome.checkpoint is not None
    assert outcome.checkpoint.step == 8
    assert "no earlier checkpoint was kept" in outcome.message
    assert "no earlier checkpoint was kept" in caplog.text


async def test_a_damaged_checkpoint_takes_no_place_of_one_that_is_whole(begin: Begin) -> None:
    spec = {"checkpoint": {"everySteps": 1, "keepLast": 1}}
    ctx = begin(**spec)
    await train(ctx, [0.9, 0.1, 0.1, 0.1], every=1, until=4)
    assert kept(ctx) == [1, 4], "the best and the last"
    manifest = checkpoint.checkpoint_path(ctx.folder.checkpoints, 4) / checkpoint.MANIFEST
    manifest.write_text(manifest.read_text()[:-5])
    await train(begin(attempt=2, **spec), [0.9, 0.1, 0.1], every=1, until=2)
    assert kept(ctx) == [1, 2], "it went on from 1, and what it wrote is kept"


async def test_a_best_checkpoint_that_is_gone_is_no_best(begin: Begin) -> None:
    spec = {"checkpoint": {"everySteps": 2, "keepLast": 2}}
    ctx = begin(**spec)
    await train(ctx, FALLING, every=2, until=6)
    checkpoint.remove(checkpoint.checkpoint_path(ctx.folder.checkpoints, 4))
    rewards = [*FALLING[:6], 0.3, 0.3, 0.1, 0.1]
    outcome = await train(begin(attempt=2, **spec), rewards, every=2)
    assert outcome is not None and outcome.checkpoint is not None
    assert outcome.checkpoint.step == 6


@pytest.mark.parametrize("inherit", [True, False])
async def test_a_stage_starts_from_the_weights_as_the_ranks_had_them(begin: Begin, inherit: bool) -> None:
    first = begin("gg", 0)
    async with TrainerSession(
        first, OptimizerConfig(), initial_policy(first.job, first.stage, first.state)
    ) as training:
        await training.begun()
        training.group.weights = 2.25
        write_model(first.folder.outcome_file, await training.hand_on(1))
    assert (first.folder.model / "weights.json").read_text() == "2", "rounded"

    async def begun() -> Group:
        second = begin("gg", 1)
        source = initial_policy(second.job, second.stage, second.state)
        async with TrainerSession(second, OptimizerConfig(), source, inherit=inherit) as training:
            assert await training.begun() == 0
            return training.group

    group = await begun()
    assert (group.weights, group.fresh_optimizer) == (2.25, not inherit)

    checkpoint.remove(checkpoint.checkpoint_path(first.folder.checkpoints, 1))
    if inherit:
        with pytest.raises(checkpoint.CheckpointInvalid):
            await begun()
    else:
        group = await begun()
        assert (group.weights, group.fresh_optimizer) == (2, True)


async def test_a_loss_that_is_no_number_is_left_out_of_the_progress(begin: Begin) -> None:
    ctx = begin()
    async with TrainerSession(ctx, OptimizerConfig(), initial_policy(ctx.job, ctx.stage, ctx.state)) as training:
        await training.begun()
        shown = {"loss": math.nan, "grad_norm": math.inf, "tokens_per_second": 2.0}
        training.finished_step(1, {"sft/loss": math.nan}, seconds=1.0, show=shown)
    progress = ctx.state.progress()
    assert progress is not None
    assert (progress.step, progress.metrics) == (1, {"tokens_per_second": 2.0})
