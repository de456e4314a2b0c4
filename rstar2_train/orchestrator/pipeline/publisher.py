"""The publisher: passes the weights of each step to the engines, and reports the version that they serve.

With `maxStaleness: 0` the trainer waits for the engines. Otherwise the trainer waits only for the export of its
weights; the engines load them in the background, and the rollouts in flight continue with the new weights. If a newer
version is exported during a load, the versions between are skipped. If the engines reject a delta, the trainer exports
a snapshot as soon as its ranks are idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import InitialPolicy, final_version, step_version
from rstar2_train.orchestrator.pipeline.served_version import ServedVersion
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.trainer_session import TrainerSession


class Publisher:
    """The weight versions of one stage attempt."""

    def __init__(
        self,
        ctx: StageContext,
        trainer: TrainerSession,
        rollouts: RolloutSession,
        served: ServedVersion,
        *,
        in_flight: bool,
    ) -> None:
        """`in_flight`: let the engines load new weights in the background, without a stop of their rollouts."""
        self._ctx = ctx
        self._trainer = trainer
        self._rollouts = rollouts
        self._served = served
        self._in_flight = in_flight
        self._exported = 0
        """Step of the newest exported weights."""
        self._wake = asyncio.Event()
        self.rejected = asyncio.Event()
        """Set when the engines rejected the newest exported weights: the trainer must export them again."""
        self._error: Exception | None = None

    async def start(self, source: InitialPolicy) -> int:
        """Load the weights of the last finished step into the engines. Return its number: 0 without a checkpoint.

        A new stage serves its model folder, without waiting for the ranks; only they have the weights of an adapter
        that it continues.
        """
        if not self._trainer.resumes and not source.continues_adapter:
            await self._rollouts.weights.push_folder(source.model, step_version(self._ctx.stage, 0))
            return 0
        step = await self._trainer.wait_until_ready()
        await self.publish_last(step)
        return step

    @contextlib.asynccontextmanager
    async def running(self, step: int) -> AsyncIterator[None]:
        """Let the generator use the weights of `step`, which the engines serve, and load later ones on request."""
        self._exported = step
        self._served.advance(step)
        loading = asyncio.create_task(self._load_exported())
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    async def publish(self, step: int) -> None:
        """Pass the trainer's weights on as those of `step`. Raises the error of an earlier load."""
        if self._error is not None:
            raise self._error
        version = step_version(self._ctx.stage, step)
        if self._in_flight:
            self.rejected.clear()
            await self._rollouts.weights.export(self._trainer.group, version)
            self._exported = step
            self._wake.set()
        else:
            await self._rollouts.weights.push(self._trainer.group, version)
            self._served.advance(step)

    async def publish_last(self, step: int) -> None:
        """Load the trainer's weights of `step` into the engines, without rollouts in flight."""
        await self._rollouts.weights.push(self._trainer.group, step_version(self._ctx.stage, step))

    async def publish_final(self, step: int) -> None:
        """Load the weights of the stage's final model, which after a collapse is not that of the last step.

        The final model of a stage with LoRA has the adapter merged and rounded: the engines load its folder.
        """
        version = final_version(self._ctx.stage, step)
        if self._ctx.job.lora(self._ctx.stage) is not None:
            await self._rollouts.weights.push_folder(self._ctx.folder.model, version)
        else:
            await self._rollouts.weights.push(self._trainer.group, version)

    async def _load_exported(self) -> None:
        """Load the newest exported version into the engines, again and again."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                started, step = time.monotonic(), self._exported
                if not await self._rollouts.weights.load_exported():
                    self.rejected.set()
                    continue
                self._served.advance(step)
                values = {"time/load_seconds": time.monotonic() - started}
                self._ctx.tracker.log_metrics(self._ctx.stage.name, step=step, values=values)
        except Exception as error:
            self._error = error
            self._served.fail(error)
