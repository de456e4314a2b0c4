"""The GRPO stage: creates the sessions, resumes, runs the steps of the pipeline and validates the final model.

    prompts of the step
      -> 2G rollouts per prompt, scored; G kept, with advantages       pipeline.Generator
      -> Parquet file of the step                                      pipeline.GroupLog
      -> update, metrics, triggers                                     pipeline.StepTrainer
      -> weights to the engines                                        pipeline.Publisher
      -> checkpoint, written while the stage continues                 TrainerSession.start_checkpoint

If the process died during the update, the restarted attempt reads the step's Parquet file and repeats only the update.
If it died during the rollouts, the restarted attempt samples only the groups that were not complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from rstar2_train.api.contracts import ENGINE_START_SECONDS, Outcome, StageFailed
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.capacity.fit import sequence_tokens
from rstar2_train.data.problems import Problem
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.initial_policy import InitialPolicy, inherits_optimizer, initial_policy
from rstar2_train.orchestrator.pipeline.generator import Batch, BatchQueue, Generator
from rstar2_train.orchestrator.pipeline.publisher import Publisher
from rstar2_train.orchestrator.pipeline.served_version import ServedVersion
from rstar2_train.orchestrator.pipeline.step_trainer import StepTrainer
from rstar2_train.orchestrator.problem_files import load_problems, stage_prompts
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.sessions import SESSIONS, Sessions
from rstar2_train.orchestrator.validation import needs_validation, run_validation
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.teacher_check import TeacherServers
from rstar2_train.trainer.types import OptimizerConfig
from rstar2_train.utils.auth import ENGINE_TOKEN, read_secret
from rstar2_train.weights.route_format import RouteFormat

log = logging.getLogger(__name__)


async def run(ctx: StageContext, sessions: Sessions = SESSIONS) -> Outcome:
    """Run the stage to its end. Raises SuspendRequested or StageFailed."""
    settings = ctx.job.grpo_settings(ctx.stage)
    source = initial_policy(ctx.job, ctx.stage, ctx.state)
    optimizer = OptimizerConfig(weight_decay=settings.weight_decay, grad_clip=settings.grad_clip)
    inherit = inherits_optimizer(source, reset=settings.reset_optimizer)
    if inherit:
        settings = settings.model_copy(update={"warmup_steps": 0})  # the inherited moments are already warm
    async with contextlib.AsyncExitStack() as stack:
        lag = settings.max_staleness
        trainer = await stack.enter_async_context(sessions.trainer(ctx, optimizer, source, inherit=inherit, lag=lag))
        chat_format = await asyncio.to_thread(sessions.chat_format, ctx, source.model)
        problems, prompts = await usable_problems(ctx, settings, chat_format)
        rollouts = await stack.enter_async_context(sessions.rollouts(ctx, chat_format))
        served = ServedVersion()
        routes = RouteFormat.of_folder(source.model) if settings.router_replay else None
        teacher = None
        if (servers := _teacher_servers(ctx, settings)) is not None:
            teacher = await stack.enter_async_context(sessions.teacher(servers))
            longest = sequence_tokens(ctx.job, ctx.stage)
            await ctx.unless_stopped(teacher.check(chat_format.tokenizer, source.model, longest=longest))
        generator = Generator(ctx, settings, rollouts, problems, prompts, served, routes=routes, teacher=teacher)
        steps = StepTrainer(ctx, settings, trainer, chat_format)
        publisher = Publisher(ctx, trainer, rollouts, served, in_flight=lag > 0)

        if not trainer.resumes:
            await _validate_source(ctx, rollouts, source)
        first = await publisher.start(source)
        ctx.check_current()
        await asyncio.to_thread(generator.discard_other_sampling, first)
        steps.resume(first)
        await _run_steps(ctx, generator, steps, publisher)
        await asyncio.to_thread(generator.discard_unused, steps.step)
        outcome = await trainer.finish(
            steps.step, reason=steps.end_reason or "StepsReached", stop_ids=chat_format.stop_ids
        )
        await _validate_final(ctx, rollouts, publisher, outcome, last_step=steps.step)
        return outcome


def _teacher_servers(ctx: StageContext, settings: GRPOSettings) -> TeacherServers | None:
    """Return the servers of the stage's teacher; None if the ranks hold it, or there is none."""
    teacher = settings.objective.remote_teacher
    if teacher is None:
        return None
    if teacher.endpoint is not None:
        return TeacherServers.of_endpoint(teacher)
    token, name = read_secret(ENGINE_TOKEN) or "", str(Path(teacher.source or ""))
    return TeacherServers(ctx.endpoints.teacher, token, name, start_seconds=ENGINE_START_SECONDS)


async def _run_steps(ctx: StageContext, generator: Generator, steps: StepTrainer, publisher: Publisher) -> None:
    """Run the steps until the stage is finished; on return the engines serve the weights of the last one.

    Raises SuspendRequested on a stop request; after the update it does not wait for the engines.
    """
    first = steps.step
    async with publisher.running(first), generator.batches(first) as batches:
        while not steps.finished:
            ctx.check_stop()
            started = time.monotonic()
            batch = await _next_batch(batches, steps, publisher)
            waited = time.monotonic() - started
            await steps.train(batch)
            del batch  # gigabytes of host memory, which the next batch needs
            if steps.finished:
                break
            if ctx.device.enabled:  # the copy of the state needs the device, which the engines get with the weights
                await steps.start_checkpoint()
            with _timed(ctx, steps.step, started=started, waited=waited):
                await publisher.publish(steps.step)
            if not ctx.device.enabled:
                await steps.start_checkpoint()
    if steps.step > first:
        with _timed(ctx, steps.step, started=started, waited=waited):
            await publisher.publish_last(steps.step)


async def _next_batch(batches: BatchQueue, steps: StepTrainer, publisher: Publisher) -> Batch:
    """Return the next batch. Meanwhile the ranks are idle: export weights again that the engines rejected."""

    async def take() -> Batch:
        return await (await batches.get())

    taking = asyncio.create_task(take())
    try:
        while not taking.done():
            rejected = asyncio.create_task(publisher.rejected.wait())
            await asyncio.wait({taking, rejected}, return_when=asyncio.FIRST_COMPLETED)
            rejected.cancel()
            if publisher.rejected.is_set():
                await publisher.publish(steps.step)
        return taking.result()
    finally:
        taking.cancel()


@contextlib.contextmanager
def _timed(ctx: StageContext, step: int, *, started: float, waited: float) -> Iterator[None]:
    """Track the seconds of the body, and of the step that ends with it: `waited` is the time without a batch."""
    push_started = time.monotonic()
    yield
    finished = time.monotonic()
    seconds = {"weights": finished - push_started, "step": finished - started, "wait": waited}
    values = {f"time/{phase}_seconds": value for phase, value in seconds.items()}
    ctx.tracker.log_metrics(ctx.stage.name, step=step, values=values)


async def _validate_source(ctx: StageContext, rollouts: RolloutSession, source: InitialPolicy) -> None:
    """Run the missing validation of the stage before."""
    if source.stage is not None and needs_validation(ctx, source.stage):
        await rollouts.weights.push_folder(source.model, source.version)
        await run_validation(ctx, rollouts, source.stage, step=None)


async def _validate_final(
    ctx: StageContext, rollouts: RolloutSession, publisher: Publisher, outcome: Outcome, *, last_step: int
) -> None:
    """Run the validation of the stage's final model.

    After a collapse it is not that of the last step, and with LoRA it is the merged one.
    """
    assert outcome.checkpoint is not None
    if not needs_validation(ctx, ctx.stage):
        return
    final = outcome.checkpoint.step
    if final != last_step or ctx.job.lora(ctx.stage) is not None:
        await publisher.publish_final(final)
    await run_validation(ctx, rollouts, ctx.stage, step=final)


async def usable_problems(
    ctx: StageContext, settings: GRPOSettings, chat_format: ChatFormat
) -> tuple[list[Problem], dict[str, array[int]]]:
    """Return the stage's problems whose prompt fits maxPromptTokens, and the tokens of their prompts by id.

    Raises StageFailed if there is none.
    """
    file = ctx.state.stage(settings.data_from).kept_file if settings.data_from else Path(settings.data or "")
    problems = await asyncio.to_thread(load_problems, str(file))
    prompts = await stage_prompts(problems, chat_format)
    usable = [problem for problem in problems if len(prompts[problem.id]) <= settings.max_prompt_tokens]
    if len(usable) < len(problems):
        log.warning("skipped %d of %d prompts: longer than maxPromptTokens", len(problems) - len(usable), len(problems))
    if not usable:
        message = f"{file}: every prompt is longer than maxPromptTokens ({settings.max_prompt_tokens})"
        raise StageFailed("BadData", message, retryable=False)
    return usable, {problem.id: prompts[problem.id] for problem in usable}
