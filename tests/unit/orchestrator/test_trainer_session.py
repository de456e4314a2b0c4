"""Which checkpoint is the best, which one a stage resumes from, and which model it exports."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.contracts import Outcome, Reason, StageFailed, write_model
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import initial_policy
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.orchestrator.weight_transports import choose_transport
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.types import OptimizerConfig, TrainConfig
from tests.support.stage_attempt import FakeTrainerGroup, NewAttempt

FALLING = [0.5, 0.5, 0.9, 0.5, 0.8, 0.8, 0.1, 0.1]
"""Mean reward of each step. Step 3 has the highest; the checkpoint of step 4 sampled the best pair of steps."""

GPU = {"vendor": "AMD", "resource": "amd.com/gpu"}


def start(ctx: StageContext, **options: Any) -> TrainerSession:
    """Return a session of the attempt with the fake trainer."""
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    return TrainerSession(ctx, OptimizerConfig(), source, start_group=FakeTrainerGroup, **options)  # type: ignore[arg-type]


async def train(ctx: StageContext, rewards: Sequence[float], *, every: int, until: int | None = None) -> Outcome | None:
    """Run the remaining steps of `rewards` (step 0 first), or only up to `until`, as if the process was killed then."""
    async with start(ctx) as trainer:
        for step in range(await trainer.wait_until_ready(), len(rewards) if until is None else until):
            trainer.group.grpo_step([], lr=0.0)
            trainer.rewards.append((step, rewards[step]))
            if (step + 1) % every == 0:
                await trainer.checkpoint(step + 1)
        if until is not None:
            return None
        return await trainer.finish(len(rewards), reason="Collapsed")


@pytest.mark.parametrize("reason", ["EngineUnavailable", "JudgeUnavailable", "ServerUnavailable", "StorageUnavailable"])
async def test_unavailable_service_leaves_a_checkpoint(new_attempt: NewAttempt, reason: Reason) -> None:
    """The ranks are healthy if another service or the bucket does not answer: no finished step is lost."""
    ctx = new_attempt()
    with pytest.raises(StageFailed):
        async with start(ctx) as trainer:
            trainer.report_step(await trainer.wait_until_ready() + 3, {}, seconds=1.0, headline={})
            raise StageFailed(reason, "no answer", retryable=True)
    assert kept(ctx) == [3]


@pytest.mark.parametrize(
    ("accelerator", "dtype", "expected"),
    [(GPU, "bfloat16", True), (GPU, "float32", False), (GPU, None, False), ({"vendor": "None"}, "bfloat16", False)],
)
async def test_ranks_leave_memory_for_the_chosen_transport(
    new_attempt: NewAttempt, accelerator: dict[str, str], dtype: str | None, expected: bool
) -> None:
    """Auto publishes deltas of 16-bit versions, and whole folders of float32 ones: by the format of the model."""
    trainer = {"gpusPerReplica": int(accelerator == GPU)}
    ctx = new_attempt(accelerator=accelerator, trainer=trainer, rollout={"weightTransport": "Auto"})
    (Path(ctx.job.spec.model.source) / "config.json").write_text(json.dumps({"dtype": dtype}))
    configs = []

    def start_group(*, config: TrainConfig, **_: object) -> FakeTrainerGroup:
        configs.append(config)
        return FakeTrainerGroup()

    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    async with TrainerSession(ctx, OptimizerConfig(), source, start_group=start_group) as session:  # type: ignore[arg-type]
        await session.wait_until_ready()
    version = "float32" if configs[0].float32_versions else dtype or "float32"
    assert configs[0].publishes_changes is expected is (choose_transport("Auto", dtype=version)[0] == "Delta")


def kept(ctx: StageContext) -> list[int]:
    """Return the steps of the existing checkpoints."""
    return [step for step, _ in checkpoint.list_checkpoints(ctx.folder.checkpoints)]


@pytest.mark.parametrize("killed_after", [None, 3, 4, 5, 6, 7])
async def test_finish_after_collapse_exports_best_checkpoint(new_attempt: NewAttempt, killed_after: int | None) -> None:
    """The best checkpoint is the one whose own steps had the best rewards, also after a restart."""
    spec = {"checkpoint": {"everySteps": 2, "keepLast": 1}}
    if killed_after is not None:
        await train(new_attempt(**spec), FALLING, every=2, until=killed_after)
    ctx = new_attempt(attempt=2, **spec)
    outcome = await train(ctx, FALLING, every=2)
    assert outcome is not None and outcome.checkpoint is not None
    assert (outcome.outcome, outcome.reason, outcome.checkpoint.step) == ("advanced", "Collapsed", 4)
    assert (ctx.folder.model / "weights.json").read_text() == "4"
    assert kept(ctx) == [4, 8], "the best and the last checkpoint are kept"


async def test_best_checkpoint_excludes_rewards_before_it(new_attempt: NewAttempt) -> None:
    """A reward rates the weights that sampled it, not the weights of the update that followed."""
    outcome = await train(new_attempt(checkpoint={"everySteps": 1}), [0.6, 0.7, 0.8, 0.1, 0.1], every=1)
    assert outcome is not None and outcome.checkpoint is not None
    assert outcome.checkpoint.step == 2, "the weights after the third update had reward 0.1"


async def test_best_checkpoint_under_lag_is_the_sampling_one(new_attempt: NewAttempt) -> None:
    """With rollouts that are two steps old, the reward of a step rates the checkpoint two steps before it."""
    ctx = new_attempt(checkpoint={"everySteps": 1, "keepLast": 1})
    rewards = [0.1, 0.1, 0.1, 0.1, 0.9, 0.2, 0.2, 0.2]
    async with start(ctx, lag=2) as trainer:
        await trainer.wait_until_ready()
        for step, reward in enumerate(rewards):
            trainer.group.grpo_step([], lr=0.0)
            trainer.rewards.append((max(0, step - 2), reward))
            await trainer.checkpoint(step + 1)
        outcome = await trainer.finish(len(rewards), reason="OffPolicy")
    assert outcome.checkpoint is not None
    assert (outcome.reason, outcome.checkpoint.step) == ("OffPolicy", 2)
    assert (ctx.folder.model / "weights.json").read_text() == "2"


async def test_finish_after_collapse_without_checkpoint_warns(
    new_attempt: NewAttempt, caplog: pytest.LogCaptureFixture
) -> None:
    """Without an earlier checkpoint the collapsed model is exported; outcome and log report it."""
    with caplog.at_level(logging.WARNING):
        outcome = await train(new_attempt(), FALLING, every=100)
    assert outcome is not None and outcome.checkpoint is not None
    assert outcome.checkpoint.step == 8
    assert "no earlier checkpoint was kept" in outcome.message
    assert "no earlier checkpoint was kept" in caplog.text


async def test_resume_deletes_newer_damaged_checkpoints(new_attempt: NewAttempt) -> None:
    """A damaged checkpoint is not counted by keepLast, so that a new checkpoint is not pruned."""
    spec = {"checkpoint": {"everySteps": 1, "keepLast": 1}}
    ctx = new_attempt(**spec)
    await train(ctx, [0.9, 0.1, 0.1, 0.1], every=1, until=4)
    assert kept(ctx) == [1, 4], "the best and the last"
    manifest = checkpoint.checkpoint_path(ctx.folder.checkpoints, 4) / checkpoint.MANIFEST
    manifest.write_text(manifest.read_text()[:-5])
    await train(new_attempt(attempt=2, **spec), [0.9, 0.1, 0.1], every=1, until=2)
    assert kept(ctx) == [1, 2], "it resumed from 1, and the new checkpoint is kept"


async def test_resume_deletes_what_a_lower_number_does_not_keep(new_attempt: NewAttempt) -> None:
    """Before the first step, so that a full disk has space for the next checkpoint."""
    ctx = new_attempt(**{"checkpoint": {"everySteps": 1, "keepLast": 4}})
    await train(ctx, [0.1, 0.9, 0.1, 0.1, 0.1, 0.1], every=1, until=6)
    assert kept(ctx) == [1, 3, 4, 5, 6]
    lower = new_attempt(attempt=2, **{"checkpoint": {"everySteps": 1, "keepLast": 1}})
    async with start(lower) as trainer:
        assert await trainer.wait_until_ready() == 6
        assert kept(lower) == [1, 6], "the best and the last"


async def test_finish_ignores_a_best_checkpoint_that_is_missing(new_attempt: NewAttempt) -> None:
    """If the best checkpoint was deleted, the next best one is exported."""
    spec = {"checkpoint": {"everySteps": 2, "keepLast": 2}}
    ctx = new_attempt(**spec)
    await train(ctx, FALLING, every=2, until=6)
    checkpoint.remove(checkpoint.checkpoint_path(ctx.folder.checkpoints, 4))
    rewards = [*FALLING[:6], 0.3, 0.3, 0.1, 0.1]
    outcome = await train(new_attempt(attempt=2, **spec), rewards, every=2)
    assert outcome is not None and outcome.checkpoint is not None
    assert outcome.checkpoint.step == 6


@pytest.mark.parametrize("inherit", [True, False])
async def test_start_loads_the_exact_weights_of_the_last_stage(new_attempt: NewAttempt, inherit: bool) -> None:
    """A stage starts from the previous stage's checkpoint; without it, from the rounded weights of the model folder.

    With an inherited optimiser a missing checkpoint is an error.
    """
    first = new_attempt("gg", 0)
    async with start(first) as trainer:
        await trainer.wait_until_ready()
        trainer.group.weights = 2.25  # type: ignore[attr-defined]
        write_model(first.folder.outcome_file, await trainer.finish(1))
    assert (first.folder.model / "weights.json").read_text() == "2", "rounded"

    async def start_second() -> Any:
        async with start(new_attempt("gg", 1), inherit=inherit) as trainer:
            assert await trainer.wait_until_ready() == 0
            return trainer.group

    group = await start_second()
    assert (group.weights, group.fresh_optimizer) == (2.25, not inherit)

    checkpoint.remove(checkpoint.checkpoint_path(first.folder.checkpoints, 1))
    if inherit:
        with pytest.raises(checkpoint.CheckpointInvalid):
            await start_second()
    else:
        group = await start_second()
        assert (group.weights, group.fresh_optimizer) == (2, True)


async def test_report_step_skips_metrics_that_are_not_finite(new_attempt: NewAttempt) -> None:
    """NaN and infinity are not valid JSON: the progress omits them."""
    ctx = new_attempt()
    async with start(ctx) as trainer:
        await trainer.wait_until_ready()
        headline = {"loss": math.nan, "grad_norm": math.inf, "tokens_per_second": 2.0}
        trainer.report_step(1, {"sft/loss": math.nan}, seconds=1.0, headline=headline)
    progress = ctx.state.progress()
    assert progress is not None
    assert (progress.step, progress.metrics) == (1, {"tokens_per_second": 2.0})


@pytest.mark.parametrize(("start_of", "base"), [("Continue", "base"), ("New", "g0")])
async def test_stage_continues_the_adapter_on_its_base(new_attempt: NewAttempt, start_of: str, base: str) -> None:
    """Continued twice, the ranks load the base of the first adapter, and the exact adapter of the stage before; a new
    adapter has the merged model as its base."""
    spec = {"trainer": {"gpusPerReplica": 0, "lora": {"rank": 8, "start": start_of}}}
    for number in range(3):
        ctx = new_attempt("ggg", number, **spec)
        source = initial_policy(ctx.job, ctx.stage, ctx.state)
        async with start(ctx) as trainer:
            await trainer.wait_until_ready()
            group: Any = trainer.group
            group.weights += 0.25
            write_model(ctx.folder.outcome_file, await trainer.finish(1))
        if number == 1:
            loaded = ctx.state.root.parent / "base" if base == "base" else ctx.state.stage("g0").model
            assert (source.base, source.continues_adapter) == (loaded, start_of == "Continue")
            assert group.weights == (0.5 if start_of == "Continue" else 0.25), (
                "exact, or the rounded model and a change"
            )
    if start_of == "Continue":
        assert (source.base, source.model) == (ctx.state.root.parent / "base", ctx.state.stage("g1").model)
        assert group.weights == 0.75
        checkpoint.remove(checkpoint.checkpoint_path(ctx.state.stage("g1").checkpoints, 1))
        checkpoint.remove(checkpoint.checkpoint_path(ctx.folder.checkpoints, 1))
        with pytest.raises(checkpoint.CheckpointInvalid):
            async with start(new_attempt("ggg", 2, **spec)) as trainer:
                await trainer.wait_until_ready()
