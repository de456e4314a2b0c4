"""The publisher: passes the weights of each step to the engines, and reports the version that they serve."""

from __future__ import annotations

from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import InitialPolicy, final_version, step_version
from rstar2_train.orchestrator.pipeline.served_version import ServedVersion
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.trainer_session import TrainerSession


class Publisher:
    """The weight versions of one stage attempt."""

    def __init__(
        self, ctx: StageContext, trainer: TrainerSession, rollouts: RolloutSession, served: ServedVersion
    ) -> None:
        self._ctx = ctx
        self._trainer = trainer
        self._rollouts = rollouts
        self._served = served

    async def start(self, source: InitialPolicy) -> int:
        """Load the weights of the last finished step into the engines. Return its number: 0 without a checkpoint."""
        if not self._trainer.resumes:
            await self._rollouts.push_folder(source.model, step_version(self._ctx.stage, 0))
            return 0
        step = await self._trainer.wait_until_ready()
        await self.publish(step, admit=False)
        return step

    async def publish(self, step: int, *, admit: bool = True) -> None:
        """Load the trainer's weights into the engines as those of `step`; `admit`: let the generator use them."""
        await self._rollouts.push_weights(self._trainer.group, step_version(self._ctx.stage, step))
        if admit:
            self.admit(step)

    def admit(self, step: int) -> None:
        """Let the generator start the batches for which the version of `step` is recent enough."""
        self._served.advance(step)

    async def publish_final(self, step: int) -> None:
        """Load the weights of the stage's final model, which after a collapse is not that of the last step."""
        await self._rollouts.push_weights(self._trainer.group, final_version(self._ctx.stage, step))
