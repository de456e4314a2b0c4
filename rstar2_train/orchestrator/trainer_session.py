"""The trainer's side of a stage: ranks, checkpoints, what is shown and tracked, and what is handed on.

Shared by the SFT and the GRPO driver. A stage resumes from its last complete checkpoint; its final model is exported
as a Hugging Face folder, and its final checkpoint (with the optimiser) is named in the outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Self

from rstar2_train.api.contracts import CheckpointRef, Outcome, Reason, StageFailed
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.initial_policy import InitialPolicy
from rstar2_train.trainer import checkpoint as checkpoints
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import OptimizerConfig, TrainConfig, TrainState

log = logging.getLogger(__name__)

_TIMED_STEPS = 8
"""Steps whose mean gives the time left."""


class TrainerSession:
    """The ranks of one stage attempt, from start to hand-over.

    What ends the attempt and is no fault of the ranks (it is to stop, the engines or the judge stay away) leaves a
    checkpoint when it passes through.
    """

    group: TrainerGroup
    """Set once `begun` has returned."""

    def __init__(
        self, ctx: StageContext, optimizer: OptimizerConfig, source: InitialPolicy, *, inherit: bool = False
    ) -> None:
        """`source`: what the stage starts from; `inherit`: with the optimiser of the stage before."""
        self._ctx = ctx
        self._optimizer = optimizer
        self._source = source
        self._inherit = inherit
        self._seconds: deque[float] = deque(maxlen=_TIMED_STEPS)
        self._done = 0
        self._saved = 0
        self._saving: asyncio.Task[None] | None = None
        self.extra: dict[str, Any] = {}
        """What the driver keeps with a checkpoint, such as its history; JSON."""
        self.rewards: list[float] = []
        """Mean rewards of the steps since the last checkpoint; the first was sampled with that checkpoint's weights."""
        self.best: tuple[float, int] | None = None
        """The best checkpoint: mean reward of the steps from it to the next one, and its step."""
        self.resumes = bool(checkpoints.list_checkpoints(ctx.folder.checkpoints))
        """Whether the stage has a checkpoint to go on from; if not, its weights are still those of the source."""

    async def __aenter__(self) -> Self:
        # Ranks take half a minute to boot: the driver reads its data and samples its first rollouts meanwhile.
        self._beginning = asyncio.create_task(self._begin())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        await asyncio.wait({self._beginning})
        away = isinstance(error, StageFailed) and error.reason in ("EngineUnavailable", "JudgeUnavailable")
        try:
            if (away or isinstance(error, SuspendRequested)) and self._beginning.exception() is None:
                await self.checkpoint(self._done)
        finally:
            if hasattr(self, "group"):
                await asyncio.to_thread(self.group.close)
            if self._saving is not None:
                await asyncio.wait({self._saving})

    async def begun(self) -> int:
        """Wait until the ranks hold the stage's weights. Returns the steps that are already done."""
        return await asyncio.shield(self._beginning)

    async def _begin(self) -> int:
        """Boot the ranks; restore the stage's last checkpoint, or load what it starts from."""
        ctx, spec = self._ctx, self._ctx.job.spec
        self.group = await asyncio.to_thread(
            TrainerGroup,
            ranks=ctx.job.replicas(ctx.stage) * spec.trainer.ranks_per_replica,
            config=TrainConfig.from_spec(spec),
            ray_address=ctx.endpoints.ray,
            gpus_per_rank=min(1, spec.trainer.gpus_per_replica),
        )
        ctx.watch_signals()
        await asyncio.to_thread(self.group.load, self._source.model, optimizer=self._optimizer)
        state = await self._restore_newest()
        if state is None:
            await self._take_over()
            return 0
        self.extra = state.extra
        self._done = self._saved = state.step
        best = self.extra.get("best")
        # After falling back to an older checkpoint, what was the best then may have been deleted since.
        self.best = (best[0], best[1]) if best and self._there(best[1]) else None
        log.info("resuming %s after step %d", ctx.stage.name, state.step)
        ctx.report(step=state.step, checkpoint=self._reference(state.step))
        return state.step

    async def _take_over(self) -> None:
        """Take the weights of the stage before as its ranks had them: its model folder has them rounded to its dtype.

        A damaged checkpoint is an error only where the optimiser is wanted too: no other file has that.
        """
        checkpoint = self._source.checkpoint
        if checkpoint is None:
            return
        try:
            await asyncio.to_thread(self.group.restore, checkpoint, reset_optimizer=not self._inherit)
        except checkpoints.CheckpointInvalid as error:
            if self._inherit:
                raise
            log.warning("%s; starting from the rounded weights in %s", error, self._source.model)

    async def _restore_newest(self) -> TrainState | None:
        """The newest checkpoint that is whole; None when the stage has none yet.

        Damaged ones that are newer are deleted: as the newest they would be kept, and what is written now dropped.
        """
        found = [folder for _, folder in checkpoints.list_checkpoints(self._ctx.folder.checkpoints)]
        damaged = []
        for folder in reversed(found):
            try:
                state = await asyncio.to_thread(self.group.restore, folder)
            except checkpoints.CheckpointInvalid as error:
                if folder == found[0]:
                    raise
                log.warning("%s; falling back to the checkpoint before it", error)
                damaged.append(folder)
                continue
            for one in damaged:
                await asyncio.to_thread(checkpoints.remove, one)
            return state
        return None

    def finished_step(
        self, step: int, metrics: Mapping[str, float], *, seconds: float, show: Mapping[str, float]
    ) -> None:
        """Track a step's metrics and show its most telling ones (`show`) in the progress."""
        ctx = self._ctx
        self._done = step
        self._seconds.append(seconds)
        total = ctx.progress.total_steps or step
        left = (total - step) * fmean(self._seconds)
        ctx.tracker.metrics(ctx.stage.name, step=step, values=metrics)
        ctx.report(phase="Training", step=step, metrics=dict(show), estimated_remaining_seconds=left)

    async def checkpoint(self, step: int) -> None:
        """Write a complete checkpoint of `step` and drop those that need not be kept."""
        await self.settled()
        if step != self._saved:
            await self._write(step)

    def begin_checkpoint(self, step: int) -> None:
        """The same aside, while the engines sample: the ranks have nothing to do. `settled` before the next update."""
        self._saving = asyncio.create_task(self._write(step))

    async def settled(self) -> None:
        """Return when a checkpoint that was begun is written. Raises what kept it from being."""
        if self._saving is not None:
            await asyncio.shield(self._saving)
            self._saving = None

    async def _write(self, step: int) -> None:
        """Only now is it known how good the checkpoint before was: rollouts show the weights that sampled them."""
        ctx, keep = self._ctx, self._ctx.job.spec.checkpoint
        ctx.check_current()
        if self._saved and self.rewards:
            reward = fmean(self.rewards)
            if self.best is None or reward > self.best[0]:
                self.best = (reward, self._saved)
        self.rewards.clear()
        self.extra["best"] = list(self.best) if self.best else None
        folder = checkpoints.checkpoint_path(ctx.folder.checkpoints, step)
        await asyncio.to_thread(self.group.save, folder, step=step, extra=self.extra)
        self._saved = step
        best = self.best[1] if self.best and keep.keep_best else None
        await asyncio.to_thread(checkpoints.prune, ctx.folder.checkpoints, keep_last=keep.keep_last, best=best)
        ctx.report(checkpoint=self._reference(step))

    async def hand_on(self, step: int, *, reason: Reason = "StepsReached") -> Outcome:
        """Write the final checkpoint and model of the stage; the outcome is for the caller to return.

        After a collapse it is the best checkpoint that is handed on; where none was kept, the last one, with a warning.
        """
        ctx = self._ctx
        await self.checkpoint(step)
        message = f"after {step} steps"
        if reason == "Collapsed" and self.best is not None and self._there(self.best[1]):
            best = checkpoints.checkpoint_path(ctx.folder.checkpoints, self.best[1])
            step = (await asyncio.to_thread(self.group.restore, best)).step
            message += f"; hands on the best checkpoint, of step {step}"
        elif reason == "Collapsed":
            message += "; no earlier checkpoint was kept to hand on, so that what is handed on has collapsed"
            log.warning("%s collapsed %s (spec.checkpoint: everySteps, keepBest)", ctx.stage.name, message)
        ctx.check_current()
        await asyncio.to_thread(self.group.export, ctx.folder.model)
        kind = "completed" if reason == "StepsReached" else "advanced"
        return ctx.outcome(kind, reason, message, checkpoint=self._reference(step))

    def _there(self, step: int) -> bool:
        """Whether there is a complete checkpoint of `step`."""
        return step in dict(checkpoints.list_checkpoints(self._ctx.folder.checkpoints))

    def _reference(self, step: int) -> CheckpointRef:
        folder = checkpoints.checkpoint_path(self._ctx.folder.checkpoints, step)
        return CheckpointRef(path=self._ctx.relative(folder), step=step)
