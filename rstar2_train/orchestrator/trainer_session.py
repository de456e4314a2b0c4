"""The trainer side of a stage attempt: the ranks, the checkpoints, the step reports and the final model.

Shared by the SFT and GRPO stages. A stage resumes from its newest complete checkpoint. Its final model is exported as a
Hugging Face folder; the outcome names its final checkpoint, which includes the optimiser.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Self

from rstar2_train.api.contracts import CheckpointRef, Outcome, Reason, StageFailed
from rstar2_train.capacity.fit import publishes_changes, sequence_tokens
from rstar2_train.capacity.model_shape import folder_bytes
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.initial_policy import InitialPolicy, reference_model
from rstar2_train.storage.host_bucket import HostBucket
from rstar2_train.storage.pod_starts import launch_start
from rstar2_train.trainer import checkpoint as checkpoints
from rstar2_train.trainer.actors import RanksLost
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import OptimizerConfig, TrainConfig, TrainState

log = logging.getLogger(__name__)

UNAVAILABLE: tuple[Reason, ...] = (
    "EngineUnavailable",
    "JudgeUnavailable",
    "ServerUnavailable",
    "StorageUnavailable",
)
"""Failures after which the ranks are still healthy."""
_TIMED_STEPS = 8
"""Number of recent steps whose mean duration gives the estimate of the remaining time."""


class TrainerSession:
    """The ranks of one stage attempt. Use as `async with`.

    On exit the session writes a checkpoint if the body was suspended, or failed because engines, judge, servers or the
    bucket are unavailable: the ranks are still healthy.
    """

    group: TrainerGroup
    """Set after `wait_until_ready` has returned."""

    def __init__(
        self,
        ctx: StageContext,
        optimizer: OptimizerConfig,
        source: InitialPolicy,
        *,
        inherit: bool = False,
        lag: int = 0,
        start_group: Callable[..., TrainerGroup] = TrainerGroup,
    ) -> None:
        """`source`: the policy to start from; `inherit`: with the optimiser of its stage.

        `lag`: largest number of steps between the weights that sample rollouts and the step that they train.
        `start_group`: starts the ranks, with the arguments of TrainerGroup.
        """
        self._ctx = ctx
        self._optimizer = optimizer
        self._source = source
        self._inherit = inherit
        self._start_group = start_group
        self._step_seconds: deque[float] = deque(maxlen=_TIMED_STEPS)
        self._done = 0
        self._saved = 0
        self._saving: asyncio.Task[None] | None = None
        self.extra: dict[str, Any] = {}
        """JSON values that the stage stores in each checkpoint, such as its history."""
        self.rewards: list[tuple[int, float]] = []
        """Steps of the weights that sampled a batch, and the batch's mean reward, for checkpoints that are not rated
        yet."""
        self.best: tuple[float, int] | None = None
        """The best checkpoint: mean reward of the batches that the weights from it to the next one sampled, and its
        step."""
        self._lag = lag
        self._unrated: list[int] = []
        """Steps of the checkpoints of this attempt that are not rated yet, in order."""
        self.resumes = bool(checkpoints.list_checkpoints(ctx.folder.checkpoints))
        """Whether the stage has a checkpoint to resume from; if not, its weights are those of `source`."""

    async def __aenter__(self) -> Self:
        # The ranks need half a minute to start. Meanwhile the stage reads its data and samples its first rollouts.
        self._starting = asyncio.create_task(self._start())
        if self._ctx.device.enabled:
            await asyncio.wait({self._starting})
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        await asyncio.wait({self._starting})
        unavailable = isinstance(error, StageFailed) and error.reason in UNAVAILABLE
        try:
            if (unavailable or isinstance(error, SuspendRequested)) and self._starting.exception() is None:
                await self._ctx.device.to_trainer(engines_failed=True)
                await self.checkpoint(self._done)
        finally:
            if self._saving is not None:
                await asyncio.wait({self._saving})
            if hasattr(self, "group"):
                await asyncio.to_thread(self.group.close)
        if isinstance(error, RanksLost) and self._saving is not None:
            # A failed write stops the ranks; its error names the cause, such as a full disk.
            self._saving.result()

    async def wait_until_ready(self) -> int:
        """Wait until the ranks have their device and the stage's weights. Return the number of finished steps.

        Raises the error of a failed checkpoint.
        """
        if self._saving is not None and self._saving.done():
            self._saving.result()
        step = await asyncio.shield(self._starting)
        await self._ctx.device.to_trainer()
        return step

    async def _start(self) -> int:
        """Start the ranks; restore the newest checkpoint of the stage, or load the policy that it starts from."""
        ctx, spec = self._ctx, self._ctx.job.spec
        await ctx.device.to_trainer()
        self.group = await asyncio.to_thread(
            self._start_group,
            ranks=ctx.job.replicas(ctx.stage) * spec.trainer.ranks_per_replica,
            config=TrainConfig.from_spec(
                spec,
                longest_sequence=sequence_tokens(ctx.job, ctx.stage),
                publishes_changes=publishes_changes(ctx.job, ctx.stage, stored=folder_bytes(self._source.base)),
                reference=reference_model(ctx.job, ctx.stage, self._source),
                lora=ctx.job.lora(ctx.stage),
            ),
            ray_address=ctx.endpoints.ray,
            gpus_per_rank=min(1, spec.trainer.gpus_per_replica),
            bucket=_host_bucket(ctx) if ctx.endpoints.bucket else None,
        )
        ctx.install_signal_handlers()
        await asyncio.to_thread(self.group.load, self._source.base, optimizer=self._optimizer)
        ctx.device.group = self.group
        state = await self._restore_newest()
        if state is None:
            await self._restore_source()
            return 0
        self.extra = state.extra
        self._done = self._saved = state.step
        self._unrated = [state.step]
        best = self.extra.get("best")
        # After a fallback to an older checkpoint, its best one may have been deleted since.
        self.best = (best[0], best[1]) if best and self._exists(best[1]) else None
        log.info("stage %s resumes after step %d", ctx.stage.name, state.step)
        await self._prune()  # a lower keepLast frees a full disk before the next checkpoint
        ctx.report(step=state.step, checkpoint=self._reference(state.step))
        return state.step

    async def _restore_source(self) -> None:
        """Load the exact weights of the previous stage's checkpoint; its model folder holds them rounded to its dtype.

        A damaged checkpoint is an error only if the optimiser or an adapter is needed too: no other file has it.
        """
        checkpoint = self._source.checkpoint
        if checkpoint is None:
            return
        try:
            await asyncio.to_thread(self.group.restore, checkpoint, reset_optimizer=not self._inherit)
        except checkpoints.CheckpointInvalid as error:
            if self._inherit or self._source.continues_adapter:
                raise
            log.warning("%s; starting from the rounded weights in %s", error, self._source.model)

    async def _restore_newest(self) -> TrainState | None:
        """Restore the newest complete checkpoint of the stage; return None if there is no checkpoint.

        Newer damaged checkpoints are deleted. Otherwise they would be kept as the newest, and new ones pruned.
        """
        folders = [folder for _, folder in checkpoints.list_checkpoints(self._ctx.folder.checkpoints)]
        damaged = []
        for folder in reversed(folders):
            try:
                state = await asyncio.to_thread(self.group.restore, folder)
            except checkpoints.CheckpointInvalid as error:
                if folder == folders[0]:
                    raise
                log.warning("%s; falling back to the previous checkpoint", error)
                damaged.append(folder)
                continue
            for path in damaged:
                await asyncio.to_thread(checkpoints.remove, path)
            return state
        return None

    def report_step(
        self, step: int, metrics: Mapping[str, float], *, seconds: float, headline: Mapping[str, float]
    ) -> None:
        """Track the metrics of a step, and report its `headline` metrics in the progress."""
        ctx = self._ctx
        self._done = step
        self._step_seconds.append(seconds)
        total = ctx.progress.total_steps or step
        remaining = max(0, total - step) * fmean(self._step_seconds)
        ctx.tracker.log_metrics(ctx.stage.name, step=step, values=metrics)
        ctx.report(phase="Training", step=step, metrics=dict(headline), estimated_remaining_seconds=remaining)

    async def checkpoint(self, step: int) -> None:
        """Write the checkpoint of `step`, unless it exists, and wait until it is durable."""
        await self.start_checkpoint(step)
        await self._wait_for_checkpoint()

    async def start_checkpoint(self, step: int) -> None:
        """Copy the state of the ranks, and write it as the checkpoint of `step` while training continues.

        One checkpoint is written at a time: waits for the one before, and raises its error.
        """
        await self._wait_for_checkpoint()
        if step == self._saved:
            return
        self._ctx.check_current()
        self._unrated.append(step)
        self._rate(step)
        self.extra["best"] = list(self.best) if self.best else None
        await self._ctx.device.to_trainer()
        await asyncio.to_thread(self.group.snapshot_state)
        self._saving = asyncio.create_task(self._write(step, dict(self.extra)))

    async def _wait_for_checkpoint(self) -> None:
        """Wait until the checkpoint in progress is durable. Raises the error of a failed write."""
        if self._saving is not None:
            await asyncio.shield(self._saving)
            self._saving = None

    async def _write(self, step: int, extra: dict[str, Any]) -> None:
        """Write the snapshot as a checkpoint, and prune those that are rated."""
        ctx = self._ctx
        folder = checkpoints.checkpoint_path(ctx.folder.checkpoints, step)
        await asyncio.to_thread(self.group.write_checkpoint, folder, step=step, extra=extra, check=ctx.check_current)
        self._saved = step
        await self._prune()
        ctx.report(checkpoint=self._reference(step))

    async def _prune(self) -> None:
        """Delete the checkpoints that spec.checkpoint does not keep, and that are rated."""
        policy = self._ctx.job.spec.checkpoint
        best = self.best[1] if self.best and policy.keep_best else None
        keep_last = max(policy.keep_last, len(self._unrated)) if policy.keep_best else policy.keep_last
        await asyncio.to_thread(checkpoints.prune, self._ctx.folder.checkpoints, keep_last=keep_last, best=best)

    def _rate(self, step: int) -> None:
        """Rate each checkpoint whose rollouts are all trained on by now, that of the next checkpoint excluded.

        The weights from a checkpoint to the next one sampled batches; the mean reward of these batches rates it.
        """
        while len(self._unrated) > 1 and self._unrated[1] + self._lag <= step:
            checkpoint, following = self._unrated[:2]
            rewards = [reward for sampled, reward in self.rewards if checkpoint <= sampled < following]
            if rewards and (self.best is None or fmean(rewards) > self.best[0]):
                self.best = (fmean(rewards), checkpoint)
            self.rewards = [(sampled, reward) for sampled, reward in self.rewards if sampled >= following]
            del self._unrated[0]

    async def finish(self, step: int, *, reason: Reason = "StepsReached", stop_ids: Sequence[int] = ()) -> Outcome:
        """Write the stage's final checkpoint and model, and return the outcome.

        `stop_ids`: as of `TrainerGroup.export`. After a collapse the final model is that of the best checkpoint; if
        none was kept, it is the last one, with a warning.
        """
        ctx = self._ctx
        await self.checkpoint(step)
        await ctx.device.to_trainer()
        message = f"finished after {step} steps"
        collapsed = reason in ("Collapsed", "OffPolicy")
        if collapsed and self.best is not None and self._exists(self.best[1]):
            best = checkpoints.checkpoint_path(ctx.folder.checkpoints, self.best[1])
            step = (await asyncio.to_thread(self.group.restore, best)).step
            message += f"; the final model is that of the best checkpoint, step {step}"
        elif collapsed:
            message += "; no earlier checkpoint was kept, so the final model is the collapsed one"
            log.warning("stage %s: %s (see spec.checkpoint: everySteps, keepBest)", ctx.stage.name, message)
        ctx.check_current()
        await asyncio.to_thread(self.group.export, ctx.folder.model, stop_ids=stop_ids)
        kind = "completed" if reason == "StepsReached" else "advanced"
        return ctx.outcome(kind, reason, message, checkpoint=self._reference(step))

    def _exists(self, step: int) -> bool:
        """Return whether a complete checkpoint of `step` exists."""
        return step in dict(checkpoints.list_checkpoints(self._ctx.folder.checkpoints))

    def _reference(self, step: int) -> CheckpointRef:
        folder = checkpoints.checkpoint_path(self._ctx.folder.checkpoints, step)
        return CheckpointRef(path=self._ctx.relative(folder), step=step)


def _host_bucket(ctx: StageContext) -> HostBucket:
    start = launch_start(ctx.job, ctx.stage.name, ctx.attempt)
    return HostBucket(ctx.state.root, ctx.job.spec.storage, ctx.job.metadata.name, start)
