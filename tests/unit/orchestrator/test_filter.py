"""The Filter stage: one stream of samples, the slices on disk, the samples of a restart, the kept problems."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest, SampleStore
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.stages import filter as stage
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.tracker import journal_file
from tests.support.stage_attempt import NewAttempt, fake_sessions

Pairs = Sequence[tuple[Problem, int]]
PROBLEMS = 5
SAMPLES = 8
ALL = [(str(number), sample) for number in range(PROBLEMS) for sample in range(SAMPLES)]
EASY = ["1", "3"]
SLICE_ROLLOUTS = 12


def finished(problem: Problem, sample: int) -> Trajectory:
    """Return a finished sample; easy problems are always solved, the others by their first sample only."""
    correct = problem.id in EASY or sample == 0
    return Trajectory(problem.id, sample, [65], gold=problem.answer, verdict="correct" if correct else "wrong")


def slowest_first(pairs: Pairs) -> Iterator[Trajectory]:
    """Finish the first sample of each problem last, so that no problem is complete before the end."""
    yield from (finished(*pair) for pair in sorted(pairs, key=lambda pair: (pair[1], pair[0].id), reverse=True))


@dataclass
class FakeRollouts:
    """Replaces RolloutSession: yields the trajectories of `sample` in the order in which they finish."""

    sample: Callable[[Pairs], Iterator[Trajectory]] = slowest_first
    requests: list[list[SampleKey]] = field(default_factory=list)
    """The samples that each call of `measure` generated."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def push_folder(self, folder: Path, version: str) -> None:
        pass

    async def measure(
        self, problems: Sequence[Problem], *, samples: int, store: SampleStore, **_: object
    ) -> list[SampleResult]:
        prompts = {problem.id: [65] for problem in problems}
        request = SampleRequest(problems=problems, prompts=prompts, samples=samples)
        results = store.load(request)
        missing = [(problem, sample) for problem, sample in request.pairs if (problem.id, sample) not in results]
        self.requests.append([(problem.id, sample) for problem, sample in missing])
        for trajectory in self.sample(missing):
            results[trajectory.prompt_id, trajectory.sample] = store.add(trajectory)
        return [results[problem.id, sample] for problem, sample in request.pairs]


@pytest.fixture
def attempt(new_attempt: NewAttempt, tmp_path: Path) -> Callable[..., StageContext]:
    """Return a function that creates an attempt of the stage."""
    rows = [{"id": str(number), "problem": f"{number}", "answer": "1"} for number in range(PROBLEMS)]
    (tmp_path / "rl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lambda number=1: new_attempt("f", attempt=number)


async def run(ctx: StageContext, rollouts: FakeRollouts) -> Outcome:
    return await stage.run(ctx, fake_sessions(rollouts), slice_rollouts=SLICE_ROLLOUTS)


def slice_sizes(ctx: StageContext) -> list[int]:
    """Return the number of trajectories in each file."""
    return [len(trajectory_store.read(file)) for _, file in trajectory_store.step_files(ctx.folder.trajectories)]


def reported_steps(ctx: StageContext) -> list[int]:
    """Return the steps whose figures are in the journal, of all attempts."""
    events = [json.loads(line) for line in journal_file(ctx.state.root).read_text().splitlines()]
    return [event["step"] for event in events if "filter/kept" in event.get("values", {})]


def kept(ctx: StageContext) -> list[str]:
    return [json.loads(line)["id"] for line in ctx.folder.kept_file.read_text().splitlines()]


async def test_filter_samples_one_stream_and_writes_slices(attempt: Callable[..., StageContext]) -> None:
    """All samples are requested together; files hold whole problems; each slice is reported as a step."""
    ctx, rollouts = attempt(), FakeRollouts()
    outcome = await run(ctx, rollouts)
    assert rollouts.requests == [ALL]
    assert slice_sizes(ctx) == [16, 16, 8]
    assert kept(ctx) == ["0", "2", "4"]
    assert outcome.message == "kept 3 of 5 problems"
    assert (ctx.progress.step, ctx.progress.total_steps) == (4, 4)
    assert reported_steps(ctx) == [1, 2, 4]
    assert ctx.progress.metrics == {"kept": 3.0, "seen": 5.0, "kept_ratio": 0.6}


async def test_filter_restart_samples_only_missing_samples(attempt: Callable[..., StageContext]) -> None:
    """A suspended attempt writes all finished samples; the next attempt generates only the others."""

    def stop_after_20(pairs: Pairs) -> Iterator[Trajectory]:
        yield from [finished(*pair) for pair in pairs[:20]]
        raise SuspendRequested

    rollouts = FakeRollouts(stop_after_20)
    ctx = attempt()
    with pytest.raises(SuspendRequested):
        await run(ctx, rollouts)
    assert slice_sizes(ctx) == [16, 4], "an unfinished slice is written too"
    rollouts.sample = slowest_first
    ctx = attempt(2)
    await run(ctx, rollouts)
    assert rollouts.requests == [ALL, ALL[20:]]
    assert kept(ctx) == ["0", "2", "4"]
    assert (
        sorted(
            (row.prompt_id, row.sample)
            for _, file in trajectory_store.step_files(ctx.folder.trajectories)
            for row in trajectory_store.read(file)
        )
        == ALL
    )
    assert ctx.progress.metrics["seen"] == PROBLEMS
    assert reported_steps(ctx) == [1, 2, 4]


async def test_filter_restart_samples_lost_samples_again(attempt: Callable[..., StageContext]) -> None:
    """A lost sample is written only at the end of a stage; a restarted attempt generates it again."""

    def lose_one(pairs: Pairs) -> Iterator[Trajectory]:
        for problem, sample in pairs:
            trajectory = finished(problem, sample)
            if (problem.id, sample) == ("1", 2):
                trajectory.mark_lost("engine", RuntimeError("connection refused"))
            yield trajectory

    def lose_one_and_stop(pairs: Pairs) -> Iterator[Trajectory]:
        yield from lose_one(pairs)
        raise SuspendRequested

    rollouts = FakeRollouts(lose_one_and_stop)
    with pytest.raises(SuspendRequested):
        await run(attempt(), rollouts)
    rollouts.sample = lose_one
    ctx = attempt(2)
    await run(ctx, rollouts)
    assert rollouts.requests == [ALL, [("1", 2)]]
    assert kept(ctx) == ["0", "1", "2", "4"], "problem 1 was not solved by every sample"
    assert sum(slice_sizes(ctx)) == len(ALL)


async def test_filter_stale_attempt_writes_nothing(attempt: Callable[..., StageContext]) -> None:
    """An attempt that a newer one replaced fails before its first write."""
    old = attempt()
    attempt(2)
    with pytest.raises(StageFailed, match="attempt 1 is stale"):
        await run(old, FakeRollouts())
    assert slice_sizes(old) == []
