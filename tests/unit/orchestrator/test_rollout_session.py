"""How a rollout session ends: bad data, a stop request, and lost rollouts."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import ExitStack
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.stages import Sampling
from rstar2_train.api.tasks import EnvironmentSpec
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.orchestrator import engine_length
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.engine_length import wait_for_lengths
from rstar2_train.orchestrator.leftovers import remove_leftovers
from rstar2_train.orchestrator.rollout_session import RolloutSession, _check_lost
from rstar2_train.orchestrator.weight_transports import VERSIONS
from rstar2_train.rollout.collector import PromptTooLong
from rstar2_train.rollout.trajectory import LostTo, Trajectory
from rstar2_train.rollout.workers.worker_process import WorkerLost
from rstar2_train.trainer import checkpoint
from tests.support.fake_rollouts import CharacterFormat
from tests.support.stage_attempt import NewAttempt

UNREACHABLE = "http://127.0.0.1:9"
NO_FORMAT: Any = None


@pytest.fixture
def ctx(new_attempt: NewAttempt) -> StageContext:
    """An attempt whose engines and judge are unreachable."""
    context = new_attempt()
    context.endpoints = dataclasses.replace(context.endpoints, engines=(UNREACHABLE,), judge=UNREACHABLE)
    return context


async def test_session_prompt_too_long_is_bad_data(ctx: StageContext) -> None:
    """A prompt that exceeds the engines' context would fail in every attempt: the failure is not retryable."""

    async def sample() -> None:
        raise PromptTooLong("problem p7: 9 prompt tokens plus maxResponseTokens 5 exceed the engines' max-model-len 12")

    with pytest.raises(StageFailed, match="problem p7: 9 prompt tokens") as caught:
        await RolloutSession(ctx, NO_FORMAT)._unless_stopped(sample())
    assert (caught.value.reason, caught.value.retryable) == ("BadData", False)


class ReplacedEngines:
    """Engines of before an edit; they are replaced when their length was read."""

    version = "v1"

    def __init__(self) -> None:
        self._lengths = iter((50, *repeat(100, 9)))

    @property
    def max_model_len(self) -> int:
        return next(self._lengths)


async def test_measure_long_prompt_counts_as_wrong(
    ctx: StageContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that leaves no space for the response is wrong and named; it does not end the job."""
    problems = [Problem("p7", "7" * 90, "1"), Problem("p8", "8" * 95, "1")]
    ctx.job.spec.rollout.engine_args = {"max-model-len": 100}
    rollouts = RolloutSession(ctx, CharacterFormat())  # type: ignore[arg-type]
    pool: Any = ReplacedEngines()
    monkeypatch.setattr(engine_length, "POLL_SECONDS", 0.01)
    rollouts._pool, rollouts._checked = pool, True
    with SampleCache(ctx.state.root / "samples.jsonl") as cache:
        results = await rollouts.measure(
            problems,
            samples=2,
            sampling=Sampling(max_response_tokens=20),
            seed=(0,),
            cache=cache,
            on_sample=lambda result, *, saved: None,
        )
    assert [(result.prompt_id, result.sample) for result in results] == [("p7", 0), ("p7", 1), ("p8", 0), ("p8", 1)]
    assert all(result.truncated and not result.correct and not result.failed for result in results)
    assert "2 of 2 prompts" in caplog.text and "p7, p8" in caplog.text
    assert "an engine takes 50 tokens" in caplog.text


@pytest.mark.parametrize(
    ("length", "given", "stale"), [(4095, {}, True), (4096, {}, False), (90, {"max_model_len": 90}, False)]
)
async def test_engines_of_before_an_edit_are_awaited(
    ctx: StageContext, length: int, given: dict[str, Any], stale: bool
) -> None:
    """They reject longer rollouts, and a measurement would count prompts as wrong: the attempt waits, then restarts."""
    ctx.job.spec.model.source, ctx.job.spec.rollout.engine_args = "hf://Qwen/Qwen3-14B", given
    ctx.job.spec.grpo.max_response_tokens = 2048
    pool: Any = SimpleNamespace(max_model_len=length)
    if not stale:
        return await wait_for_lengths(ctx.job, pool, seconds=0)
    with pytest.raises(StageFailed, match="takes 4,095 tokens, a sequence of the job may have 4,096") as caught:
        await wait_for_lengths(ctx.job, pool, seconds=0)
    assert (caught.value.reason, caught.value.retryable) == ("EngineUnavailable", True)


def test_remove_leftovers_of_killed_attempts(ctx: StageContext) -> None:
    """Temporary folders of publications and exports, and temporary Parquet files, are deleted; nothing else is."""
    stage, weights = ctx.folder, ctx.state.weights
    targets = [weights / "g0-step-000001", weights / VERSIONS / "000007-0123456789ab", stage.model]
    with ExitStack() as unfinished:
        for target in targets:
            unfinished.enter_context(checkpoint.write_folder(target, durable=False))
        killed = unfinished.pop_all()  # as after SIGKILL: no writer deletes its folder
    files = [stage.trajectories / ".step-000001.parquet.17", stage.root / ".evaluation.17"]
    kept = [stage.trajectories / "step-000001.parquet", stage.trajectories / "step-000002.groups", stage.attempt_file]
    stage.trajectories.mkdir(parents=True)
    for path in [*files, *kept[:2]]:
        path.write_text("")
    assert len(list(ctx.state.root.rglob(".aside*"))) == 3
    remove_leftovers(ctx.job, ctx.state)
    assert killed and not list(ctx.state.root.rglob(".*")) and all(path.exists() for path in kept)


async def test_session_stop_request_does_not_wait_for_engines(ctx: StageContext) -> None:
    """A stop request ends the wait for an engine long before the pool gives up."""
    started = time.monotonic()
    async with RolloutSession(ctx, NO_FORMAT) as rollouts:
        asyncio.get_running_loop().call_later(0.3, ctx.stopping.set)
        with pytest.raises(SuspendRequested):
            await rollouts.weights.push_folder(ctx.state.root, "v1")
    assert time.monotonic() - started < rollouts._pool.times.patience / 2


@pytest.mark.parametrize(("lost_to", "reason"), [("engine", "EngineUnavailable"), ("judge", "JudgeUnavailable")])
def test_check_lost_names_the_failed_service(lost_to: LostTo, reason: str) -> None:
    """The reason comes from the field `lost_to`; the words of the error message do not matter."""
    rollouts = [Trajectory("p", sample, [1]) for sample in range(4)]
    for rollout in rollouts[2:]:
        rollout.mark_lost(lost_to, RuntimeError("engine or judge"))
    with pytest.raises(StageFailed, match="2 of 4") as caught:
        _check_lost(rollouts)
    assert (caught.value.reason, caught.value.retryable) == (reason, True)


def test_check_lost_names_the_main_cause() -> None:
    """One rollout that the checker lost first does not end a job whose engines were away."""
    rollouts = [Trajectory("p", sample, [1]) for sample in range(8)]
    rollouts[0].mark_lost("checker", RuntimeError("exit 1"))
    for rollout in rollouts[5:]:
        rollout.mark_lost("engine", RuntimeError("connection refused"))
    with pytest.raises(
        StageFailed, match="4 of 8 samples were lost, 3 to the engine; first error: engine: co"
    ) as caught:
        _check_lost(rollouts)
    assert (caught.value.reason, caught.value.retryable) == ("EngineUnavailable", True)


def test_check_lost_accepts_a_quarter() -> None:
    """Up to a quarter of the rollouts may be lost."""
    rollouts = [Trajectory("p", sample, [1]) for sample in range(4)]
    rollouts[0].mark_lost("engine", RuntimeError("connection refused"))
    _check_lost(rollouts)


def test_session_workers_of_the_manifest(ctx: StageContext) -> None:
    """A small job has none by default; episodes that one process counts exclude them."""
    assert RolloutSession(ctx, NO_FORMAT)._workers is None
    ctx.job.spec.rollout.workers = 3
    workers = RolloutSession(ctx, NO_FORMAT)._workers
    assert workers is not None and len(workers.processes) == 3
    ctx.job.spec.environments = [EnvironmentSpec(name="e", url=UNREACHABLE)]
    assert RolloutSession(ctx, NO_FORMAT)._workers is None


async def test_session_worker_that_keeps_dying_is_a_crash(ctx: StageContext) -> None:
    """As a killed orchestrator: another attempt may succeed."""

    async def sample() -> None:
        raise WorkerLost("rollout worker 1/2 died 6 times in 600 s")

    with pytest.raises(StageFailed, match="died 6 times") as caught:
        await RolloutSession(ctx, NO_FORMAT)._unless_stopped(sample())
    assert (caught.value.reason, caught.value.retryable) == ("Crashed", True)
