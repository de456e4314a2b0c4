"""The GRPO stage: rollouts, verdicts, Resample-on-Correct, update and new weights for the engines, once per step.

    prompts of the step
      -> 2G rollouts per prompt under the step's weights, scored       RolloutSession.sample_groups
      -> G kept rollouts per prompt, with advantages                   selection.select_rollouts
      -> Parquet file of the step                                      trajectory_store.write
      -> update                                                        TrainerGroup.grpo_step
      -> weights to the engines                                        RolloutSession.push_weights
      -> checkpoint, in the background of the next step's rollouts     TrainerSession.start_checkpoint

If the process died during the update, the restarted attempt reads the step's Parquet file and repeats only the update.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.data.problems import Problem
from rstar2_train.data.sampler import PromptSampler
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import (
    InitialPolicy,
    final_version,
    inherits_optimizer,
    initial_policy,
    step_version,
)
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.selection import regroup_stored, select_rollouts
from rstar2_train.orchestrator.sessions import SESSIONS, Sessions
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.orchestrator.triggers import EndReason, StepRecord, end_reason
from rstar2_train.orchestrator.validation import load_problems, needs_validation, run_validation
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.metrics import headline, step_metrics
from rstar2_train.tracking.traces import select_trajectories
from rstar2_train.trainer import lr_schedule
from rstar2_train.trainer.types import OptimizerConfig, TrainSequence

log = logging.getLogger(__name__)

Groups = list[list[Trajectory]]
"""The rollouts of a step, one list per prompt."""


async def run(ctx: StageContext, sessions: Sessions = SESSIONS) -> Outcome:
    """Run the stage to its end. Raises SuspendRequested or StageFailed."""
    settings = ctx.job.grpo_settings(ctx.stage)
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    optimizer = OptimizerConfig(weight_decay=settings.weight_decay, grad_clip=settings.grad_clip)
    inherit = inherits_optimizer(source.stage, reset=settings.reset_optimizer)
    if inherit:
        settings = settings.model_copy(update={"warmup_steps": 0})  # the inherited moments are already warm
    async with contextlib.AsyncExitStack() as stack:
        trainer = await stack.enter_async_context(sessions.trainer(ctx, optimizer, source, inherit=inherit))
        chat_format = await asyncio.to_thread(sessions.chat_format, ctx, source.model)
        problems = usable_problems(ctx, settings, chat_format)
        rollouts = await stack.enter_async_context(sessions.rollouts(ctx, chat_format))
        loop = _TrainingLoop(ctx, settings, trainer, rollouts, problems, chat_format)
        await loop.resume(source)
        reason = loop.end_reason()
        while loop.step < settings.steps and reason is None:
            ctx.check_stop()
            await loop.run_step()
            reason = loop.end_reason()
        outcome = await trainer.finish(loop.step, reason=reason or "StepsReached")
        await loop.validate_final(outcome)
        return outcome


class _TrainingLoop:
    """The steps of one stage attempt."""

    def __init__(
        self,
        ctx: StageContext,
        settings: GRPOSettings,
        trainer: TrainerSession,
        rollouts: RolloutSession,
        problems: list[Problem],
        chat_format: ChatFormat,
    ) -> None:
        self._ctx = ctx
        self._settings = settings
        self._trainer = trainer
        self._rollouts = rollouts
        self._problems = problems
        self._chat_format = chat_format
        self._order = PromptSampler(len(problems), settings.prompts_per_step, ctx.seed, ctx.stage.name)
        self._history: list[StepRecord] = []
        self._reported_at = 0.0
        """Clock of the last step report."""
        self.step = 0
        """Number of finished steps; also the 0-based number of the current step."""

    async def resume(self, source: InitialPolicy) -> None:
        """Load the weights of the last finished step into the engines; run a missing validation of `source`."""
        ctx, trainer, rollouts = self._ctx, self._trainer, self._rollouts
        if trainer.resumes:
            self.step = await trainer.wait_until_ready()
            await rollouts.push_weights(trainer.group, step_version(ctx.stage, self.step))
        else:
            await rollouts.push_folder(source.model, step_version(ctx.stage, 0))
        if self.step == 0 and source.stage is not None and needs_validation(ctx, source.stage):
            await run_validation(ctx, rollouts, source.stage, step=None)
        ctx.report(phase="Training", total_steps=self._settings.steps)
        self._history = [StepRecord(**record) for record in trainer.extra.get("history", [])]
        self._reported_at = time.monotonic()

    async def run_step(self) -> None:
        """Run one step: sample, select, store, update, checkpoint, push.

        On return the engines have the step's weights, and a due checkpoint is in progress. Raises SuspendRequested on a
        stop request; after the update it does not wait for the engines.
        """
        ctx, trainer = self._ctx, self._trainer
        started = time.monotonic()
        groups, stored = await self._sample_or_read()
        batch = select_rollouts(groups, settings=self._settings, seed=ctx.seed, step=self.step)
        if not stored:
            await self._store(groups)
        rollout_seconds = time.monotonic() - started

        await trainer.wait_until_ready()
        await trainer.wait_for_checkpoint()
        trained = await self._update(batch.groups)
        update_seconds = time.monotonic() - started - rollout_seconds

        self._record(groups)
        last = self.step == self._settings.steps or self.end_reason() is not None
        if last or ctx.stopping.is_set():
            await trainer.checkpoint(self.step)
        self._report(groups, trained, {"rollout": rollout_seconds, "update": update_seconds})
        ctx.check_stop()

        push_started = time.monotonic()
        await self._rollouts.push_weights(trainer.group, step_version(ctx.stage, self.step))
        finished = time.monotonic()
        timings = {"time/weights_seconds": finished - push_started, "time/step_seconds": finished - started}
        ctx.tracker.log_metrics(ctx.stage.name, step=self.step, values=timings)
        if self.step % ctx.job.spec.checkpoint.every_steps == 0 and not last:
            trainer.start_checkpoint(self.step)

    def end_reason(self) -> EndReason | None:
        """Return why the stage must finish before its last step, or None."""
        settings = self._settings
        return end_reason(self._history, advance=settings.advance_when, collapse=settings.collapse)

    async def validate_final(self, outcome: Outcome) -> None:
        """Run the validation of the stage's final model, which after a collapse is not that of the last step."""
        ctx, rollouts = self._ctx, self._rollouts
        assert outcome.checkpoint is not None
        if not needs_validation(ctx, ctx.stage):
            return
        final = outcome.checkpoint.step
        if final != self.step:
            await rollouts.push_weights(self._trainer.group, final_version(ctx.stage, final))
        await run_validation(ctx, rollouts, ctx.stage, step=final)

    async def _sample_or_read(self) -> tuple[Groups, bool]:
        """Return the rollouts of the step, and whether an earlier attempt stored them."""
        ctx, settings = self._ctx, self._settings
        problems = [self._problems[index] for index in self._order.at(self.step)]
        file = self._file()
        stored = await asyncio.to_thread(trajectory_store.read, file) if file.exists() else []
        if stored:
            groups = regroup_stored(stored, problems=problems, rollouts_per_prompt=settings.rollouts_per_prompt)
            if groups is not None:
                log.info("step %d: using the stored rollouts; repeating only the update", self.step + 1)
                return groups, True
            log.warning("step %d: the stored rollouts have other settings or data; sampling again", self.step + 1)
        groups = await self._rollouts.sample_groups(
            problems,
            samples=settings.rollouts_per_prompt,
            sampling=settings.sampling,
            seed=(ctx.seed, self.step),
        )
        return groups, False

    async def _store(self, groups: Groups) -> None:
        """Write the rollouts of the step before the update, so that a restart can repeat the update."""
        self._ctx.check_current()
        trajectories = [trajectory for group in groups for trajectory in group]
        await asyncio.to_thread(trajectory_store.write, self._file(), trajectories)

    async def _update(self, groups: list[list[TrainSequence]]) -> dict[str, float]:
        """Train on the selected groups and return the trainer's metrics; no group, no update."""
        settings, step = self._settings, self.step
        if not groups:
            log.warning("step %d: no update, because no group has both correct and wrong rollouts", step + 1)
            return {}
        rate = lr_schedule.warmup(step, peak=settings.learning_rate, warmup_steps=settings.warmup_steps)
        metrics = await asyncio.to_thread(
            self._trainer.group.grpo_step, groups, lr=rate, settings=settings, seed=self._ctx.seed + step
        )
        return dict(metrics) | {"lr": rate}

    def _record(self, groups: Groups) -> None:
        """Count the step as finished, and keep its record for the triggers and for the next checkpoint."""
        self.step += 1
        record = _step_record(self.step, groups)
        self._history.append(record)
        recent = self._history[-_history_length(self._settings) :]
        self._trainer.extra["history"] = [asdict(record) for record in recent]
        self._trainer.rewards.append(record.reward)

    def _report(self, groups: Groups, trained: dict[str, float], timings: dict[str, float]) -> None:
        """Track the metrics and traces of the finished step, and delete trajectory files that need not be retained."""
        ctx = self._ctx
        metrics = step_metrics(groups, trained, timings)
        now = time.monotonic()
        self._trainer.report_step(self.step, metrics, seconds=now - self._reported_at, headline=headline(metrics))
        self._reported_at = now
        chosen = select_trajectories(groups, ctx.job.spec.tracking.traces_per_step)
        ctx.tracker.log_traces(ctx.stage.name, step=self.step, trajectories=chosen, decode=self._chat_format.decode)
        keep = ctx.job.spec.trajectories.keep_steps
        if keep is not None:
            trajectory_store.prune(ctx.folder.trajectories, keep)

    def _file(self) -> Path:
        """Return the Parquet file of the current step's rollouts."""
        return trajectory_store.step_path(self._ctx.folder.trajectories, self.step + 1)


def usable_problems(ctx: StageContext, settings: GRPOSettings, chat_format: ChatFormat) -> list[Problem]:
    """Return the stage's problems whose prompt fits maxPromptTokens. Raises StageFailed if there is none."""
    file = ctx.state.stage(settings.data_from).kept_file if settings.data_from else Path(settings.data or "")
    problems = load_problems(str(file))
    usable = [
        p for p in problems if len(chat_format.prompt_ids(p.problem, as_is=p.as_is)) <= settings.max_prompt_tokens
    ]
    if len(usable) < len(problems):
        log.warning("skipped %d of %d prompts: longer than maxPromptTokens", len(problems) - len(usable), len(problems))
    if not usable:
        message = f"{file}: every prompt is longer than maxPromptTokens ({settings.max_prompt_tokens})"
        raise StageFailed("BadData", message, retryable=False)
    return usable


def _step_record(step: int, groups: Groups) -> StepRecord:
    alive = [[t for t in group if not t.failed] for group in groups]
    rollouts = [trajectory for group in alive for trajectory in group]
    return StepRecord(
        step=step,
        reward=fmean(t.reward for t in rollouts) if rollouts else 0.0,
        truncated=fmean(t.truncated for t in rollouts) if rollouts else 0.0,
        all_correct=fmean(bool(group) and all(t.reward > 0 for t in group) for group in alive),
    )


def _history_length(settings: GRPOSettings) -> int:
    """Return the number of steps that the triggers need: collapse compares with the best of all earlier windows."""
    return max(settings.advance_when.window_steps, settings.advance_when.min_steps, settings.steps)
