"""The trainer's part of a step: one update per batch, then checkpoint, metrics and triggers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean

from rstar2_train.api.stages import GRPOSettings
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.pipeline.generator import Batch, Group
from rstar2_train.orchestrator.pipeline.staleness import sampled_step, staleness_metrics
from rstar2_train.orchestrator.trainer_session import TrainerSession
from rstar2_train.orchestrator.triggers import EndReason, StepRecord, end_reason
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.seeds import derive_seed
from rstar2_train.tracking.metrics import headline, step_metrics
from rstar2_train.tracking.traces import select_trajectories
from rstar2_train.trainer import lr_schedule

log = logging.getLogger(__name__)


class StepTrainer:
    """The updates of one stage attempt."""

    def __init__(
        self, ctx: StageContext, settings: GRPOSettings, trainer: TrainerSession, chat_format: ChatFormat
    ) -> None:
        self._ctx = ctx
        self._settings = settings
        self._trainer = trainer
        self._chat_format = chat_format
        self._history: list[StepRecord] = []
        self._reported_at = 0.0
        """Clock of the last step report."""
        self.step = 0
        """Number of finished steps."""
        self.end_reason: EndReason | None = None
        """Why the stage must finish before its last step."""

    @property
    def finished(self) -> bool:
        """Whether the last step of the stage is finished."""
        return self.step >= self._settings.steps or self.end_reason is not None

    def resume(self, step: int) -> None:
        """Continue after `step` finished steps, with the history of the checkpoint."""
        self.step = step
        self._ctx.report(phase="Training", total_steps=self._settings.steps)
        self._history = [StepRecord(**record) for record in self._trainer.extra.get("history", [])]
        self.end_reason = self._end_reason()
        self._reported_at = time.monotonic()

    async def train(self, batch: Batch) -> None:
        """Run the update of a batch, and report it.

        Writes a checkpoint after the last step and on a stop request; for the latter it raises SuspendRequested. The
        report is before the checkpoint: no later attempt repeats a step that has one.
        """
        trainer, started = self._trainer, time.monotonic()
        await trainer.wait_until_ready()
        trained = await self._update(batch)
        seconds = {"rollout": batch.seconds, "update": time.monotonic() - started}
        self._record(batch.groups, trained)
        self._report(batch, trained, seconds)
        if self.finished or self._ctx.stopping.is_set():
            await trainer.checkpoint(self.step)
        self._ctx.check_stop()

    async def start_checkpoint(self) -> None:
        """Start to write the checkpoint of the finished step, if the step needs one."""
        if self.step % self._ctx.job.spec.checkpoint.every_steps == 0 and not self.finished:
            await self._trainer.start_checkpoint(self.step)

    async def _update(self, batch: Batch) -> dict[str, float]:
        """Train on the selected groups and return the trainer's metrics; without a group, its counts, all zero."""
        settings, step = self._settings, self.step
        if not batch.trained:
            log.warning("step %d: no update: each group has equal rewards, or lost or masked rollouts", step + 1)
            return {"updates": 0.0, "groups": 0.0, "sequences": 0.0}
        rate = lr_schedule.warmup(step, peak=settings.learning_rate, warmup_steps=settings.warmup_steps)
        seed = derive_seed(*self._ctx.step_seed(step))
        metrics = await asyncio.to_thread(
            self._trainer.group.grpo_step, batch.trained, lr=rate, settings=settings, seed=seed
        )
        return dict(metrics) | {"lr": rate}

    def _record(self, groups: Sequence[Group], trained: dict[str, float]) -> None:
        """Count the step as finished, and keep its record for the triggers and for the next checkpoint."""
        sampled = sampled_step(self._ctx.stage, groups, default=self.step)
        self.step += 1
        size = trained.get("effective_sample_size") if self._settings.max_staleness else None
        record = _step_record(self.step, groups, effective_sample_size=size)
        self._history.append(record)
        self.end_reason = self._end_reason()
        # All of it: collapse compares with the best of all earlier windows.
        self._trainer.extra["history"] = [asdict(record) for record in self._history]
        self._trainer.rewards.append((sampled, record.reward))

    def _end_reason(self) -> EndReason | None:
        settings = self._settings
        return end_reason(self._history, advance=settings.advance_when, collapse=settings.collapse)

    def _report(self, batch: Batch, trained: dict[str, float], seconds: dict[str, float]) -> None:
        """Track the metrics and traces of the finished step, and delete trajectory files that need not be retained."""
        ctx, groups = self._ctx, batch.groups
        metrics = step_metrics(groups, trained, seconds) | batch.metrics
        if self._settings.max_staleness:
            metrics |= staleness_metrics(batch.trained, bound=self._settings.max_staleness)
        now = time.monotonic()
        self._trainer.report_step(self.step, metrics, seconds=now - self._reported_at, headline=headline(metrics))
        self._reported_at = now
        chosen = select_trajectories(groups, ctx.job.spec.tracking.traces_per_step)
        ctx.tracker.log_traces(ctx.stage.name, step=self.step, trajectories=chosen, decode=self._chat_format.decode)
        keep = ctx.job.spec.trajectories.keep_steps
        if keep is not None:
            trajectory_store.prune(ctx.folder.trajectories, keep + self._settings.max_staleness)


def _step_record(step: int, groups: Sequence[Group], *, effective_sample_size: float | None) -> StepRecord:
    alive = [[t for t in group if not t.failed] for group in groups]
    rollouts = [trajectory for group in alive for trajectory in group]
    return StepRecord(
        step=step,
        reward=fmean(t.reward for t in rollouts) if rollouts else 0.0,
        truncated=fmean(t.truncated for t in rollouts) if rollouts else 0.0,
        all_correct=fmean(bool(group) and all(t.correct for t in group) for group in alive),
        effective_sample_size=effective_sample_size,
    )
