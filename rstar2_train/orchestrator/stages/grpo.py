"""The GRPO stage: rollouts, verdicts, Resample-on-Correct, update, weights back to the engines; step by step.

One step: prompts of the step -> 2G rollouts each under the step's weights -> selection and advantages -> the Parquet
file of the step -> update -> checkpoint -> new weights. A step whose file was already written (the driver was killed
during the update) repeats its update and not its generation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.data.problems import Problem
from rstar2_train.data.sampler import PromptSampler
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import final_version, inherits_optimizer, initial_policy, step_version
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.selection import select, stored_groups
from rstar2_train.orchestrator.sessions import load_chat_format
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.orchestrator.triggers import Decision, StepRecord, decide
from rstar2_train.orchestrator.validation import load_problems, measure_validation, wants_validation
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.metrics import headline, step_metrics
from rstar2_train.tracking.traces import pick
from rstar2_train.trainer import lr_schedule
from rstar2_train.trainer.types import OptimizerConfig

log = logging.getLogger(__name__)


async def run(ctx: StageContext) -> Outcome:
    """Run the stage to its end. Raises Suspend or StageFailed."""
    settings = ctx.job.grpo_settings(ctx.stage)
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    optimizer = OptimizerConfig(weight_decay=settings.weight_decay, grad_clip=settings.grad_clip)
    inherit = inherits_optimizer(source.stage, reset=settings.reset_optimizer)
    if inherit:
        settings = settings.model_copy(update={"warmup_steps": 0})  # the optimiser's moments are there already
    async with contextlib.AsyncExitStack() as stack:
        training = await stack.enter_async_context(TrainerSession(ctx, optimizer, source, inherit=inherit))
        protocol = await asyncio.to_thread(load_chat_format, ctx, source.model)
        problems = usable_problems(ctx, settings, protocol)
        rollouts = await stack.enter_async_context(RolloutSession(ctx, protocol))
        step = 0
        if training.resumes:
            step = await training.begun()
            await rollouts.push_weights(training.group, step_version(ctx.stage, step))
        else:
            await rollouts.push_folder(source.model, step_version(ctx.stage, 0))
        if step == 0 and source.stage is not None and wants_validation(ctx, source.stage):
            await measure_validation(ctx, rollouts, source.stage, step=None)
        ctx.report(phase="Training", total_steps=settings.steps)
        history = [StepRecord(**record) for record in training.extra.get("history", [])]
        loop = _Loop(ctx, settings, training, rollouts, problems, protocol)
        reason: Decision | None = loop.decide(history)
        while step < settings.steps and reason is None:
            ctx.check_stop()
            history.append(await loop.step(step, history))
            step += 1
            reason = loop.decide(history)
        outcome = await training.hand_on(step, reason=reason or "StepsReached")
        assert outcome.checkpoint is not None
        if wants_validation(ctx, ctx.stage):
            final = outcome.checkpoint.step
            if final != step:
                await rollouts.push_weights(training.group, final_version(ctx.stage, final))
            await measure_validation(ctx, rollouts, ctx.stage, step=final)
        return outcome


class _Loop:
    """What the steps of one stage share."""

    def __init__(
        self,
        ctx: StageContext,
        settings: GRPOSettings,
        training: TrainerSession,
        rollouts: RolloutSession,
        problems: list[Problem],
        protocol: ChatFormat,
    ) -> None:
        self._ctx = ctx
        self._settings = settings
        self._training = training
        self._rollouts = rollouts
        self._problems = problems
        self._protocol = protocol
        self._order = PromptSampler(len(problems), settings.prompts_per_step, ctx.seed, ctx.stage.name)
        self._told_at = time.monotonic()

    def decide(self, history: Sequence[StepRecord]) -> Decision | None:
        """Whether the stage ends now."""
        return decide(history, advance=self._settings.advance_when, collapse=self._settings.collapse)

    async def step(self, step: int, history: Sequence[StepRecord]) -> StepRecord:
        """Do 0-based `step`: afterwards `step + 1` steps are done and in the engines, and a due checkpoint has begun.

        Raises Suspend when asked to stop; once the update is done, nothing waits for the engines any more.
        """
        ctx, settings, training = self._ctx, self._settings, self._training
        started = time.monotonic()
        groups, generated = await self._groups(step)
        selected = select(groups, settings=settings, seed=ctx.seed, step=step)
        file = trajectory_store.step_path(ctx.folder.trajectories, step + 1)
        if generated:
            ctx.check_current()
            rows = [trajectory for group in groups for trajectory in group]
            await asyncio.to_thread(trajectory_store.write, file, rows)
        rollout_seconds = time.monotonic() - started
        await training.begun()
        await training.settled()
        trained = await self._update(selected.groups, step)
        update_seconds = time.monotonic() - started - rollout_seconds
        record = _record(step + 1, groups)
        training.extra["history"] = [_plain(one) for one in [*history, record][-_history_length(settings) :]]
        training.rewards.append(record.reward)
        last = step + 1 == settings.steps or self.decide([*history, record]) is not None
        due = (step + 1) % ctx.job.spec.checkpoint.every_steps == 0
        if last or ctx.stopping.is_set():
            await training.checkpoint(step + 1)
        self._tell(step + 1, groups, trained, {"rollout": rollout_seconds, "update": update_seconds})
        ctx.check_stop()
        weights_started = time.monotonic()
        await self._rollouts.push_weights(training.group, step_version(ctx.stage, step + 1))
        ended = time.monotonic()
        timings = {"time/weights_seconds": ended - weights_started, "time/step_seconds": ended - started}
        ctx.tracker.metrics(ctx.stage.name, step=step + 1, values=timings)
        if due and not last:
            training.begin_checkpoint(step + 1)
        return record

    async def _groups(self, step: int) -> tuple[list[list[Trajectory]], bool]:
        """The step's rollouts: read back when an earlier attempt has written them, else generated (True)."""
        ctx, settings = self._ctx, self._settings
        problems = [self._problems[index] for index in self._order.at(step)]
        file = trajectory_store.step_path(ctx.folder.trajectories, step + 1)
        stored = await asyncio.to_thread(trajectory_store.read, file) if file.exists() else []
        if stored:
            groups = stored_groups(stored, problems=problems, rollouts_per_prompt=settings.rollouts_per_prompt)
            if groups is not None:
                log.info("step %d: its rollouts were already written; repeating the update only", step + 1)
                return groups, False
            log.warning("step %d: its rollouts were written for other settings or data; sampling anew", step + 1)
        groups = await self._rollouts.sample_groups(
            problems, samples=settings.rollouts_per_prompt, sampling=settings.sampling, seed=(ctx.seed, step)
        )
        return groups, True

    async def _update(self, groups: list, step: int) -> dict[str, float]:
        """One pass over the selected groups; nothing when no group had variance."""
        settings = self._settings
        if not groups:
            log.warning("step %d: no group has both right and wrong rollouts; no update", step + 1)
            return {}
        rate = lr_schedule.warmup(step, peak=settings.learning_rate, warmup_steps=settings.warmup_steps)
        metrics = await asyncio.to_thread(
            self._training.group.grpo_step, groups, lr=rate, settings=settings, seed=self._ctx.seed + step
        )
        return dict(metrics) | {"lr": rate}

    def _tell(
        self, step: int, groups: list[list[Trajectory]], trained: dict[str, float], timings: dict[str, float]
    ) -> None:
        ctx = self._ctx
        metrics = step_metrics(groups, trained, timings)
        now = time.monotonic()
        self._training.finished_step(step, metrics, seconds=now - self._told_at, show=headline(metrics))
        self._told_at = now
        chosen = pick(groups, ctx.job.spec.tracking.traces_per_step)
        ctx.tracker.traces(ctx.stage.name, step=step, trajectories=chosen, decode=self._protocol.decode)
        keep = ctx.job.spec.retain.trajectory_steps
        if keep is not None:
            trajectory_store.prune(ctx.folder.trajectories, keep)


def usable_problems(ctx: StageContext, settings: GRPOSettings, protocol: ChatFormat) -> list[Problem]:
    """The stage's problems whose prompt fits. Raises StageFailed when there is none."""
    file = ctx.state.stage(settings.data_from).kept_file if settings.data_from else Path(settings.data or "")
    problems = load_problems(str(file))
    fitting = [p for p in problems if len(protocol.prompt_ids(p.problem, as_is=p.as_is)) <= settings.max_prompt_tokens]
    if len(fitting) < len(problems):
        log.warning("%d of %d prompts are longer than maxPromptTokens", len(problems) - len(fitting), len(problems))
    if not fitting:
        message = f"{file}: every prompt is longer than maxPromptTokens ({settings.max_prompt_tokens})"
        raise StageFailed("BadData", message, retryable=False)
    return fitting


def _record(step: int, groups: list[list[Trajectory]]) -> StepRecord:
    alive = [[t for t in group if not t.failed] for group in groups]
    rows = [trajectory for group in alive for trajectory in group]
    return StepRecord(
        step=step,
        reward=fmean(t.reward for t in rows) if rows else 0.0,
        truncated=fmean(t.truncated for t in rows) if rows else 0.0,
        all_correct=fmean(bool(group) and all(t.reward > 0 for t in group) for group in alive),
    )


def _plain(record: StepRecord) -> dict[str, float]:
    return {name: getattr(record, name) for name in StepRecord.__slots__}


def _history_length(settings: GRPOSettings) -> int:
    """Steps that the triggers may look back on: collapse compares with the best window ever seen."""
    return max(settings.advance_when.window_steps, settings.advance_when.min_steps, settings.steps)
