"""The Filter stage: one stream of samples, the files on disk, the samples of a restart, the kept problems."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest

from rstar2_train.api.contracts import Outcome, StageFailed
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.difficulty import FilterReport
from rstar2_train.evaluation.sample_cache import SampleCache
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.rollout_session import SampleSink
from rstar2_train.orchestrator.stages import filter as stage
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.tracker import journal_file
from tests.support.stage_attempt import NewAttempt, fake_sessions
from tests.support.token_arrays import token_array

Pairs = Sequence[tuple[Problem, int]]
PROBLEMS = 5
SAMPLES = 8
ALL = [(str(number), sample) for number in range(PROBLEMS) for sample in range(SAMPLES)]
EASY = ["1", "3"]
FILE_SAMPLES = 20
"""Samples per file: two problems."""


def finished(problem: Problem, sample: int, *, easy: bool = False) -> Trajectory:
    """Return a finished sample; easy problems are always solved, the others by their first sample only."""
    correct = easy or problem.id in EASY or sample == 0
    return Trajectory(
        problem.id, sample, token_array([65]), gold=problem.answer, verdict="correct" if correct else "wrong"
    )


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

    @property
    def weights(self) -> Self:
        return self

    async def push_folder(self, folder: Path, version: str) -> None:
        pass

    async def measure(
        self,
        problems: Sequence[Problem],
        *,
        samples: int,
        cache: SampleCache,
        on_sample: SampleSink,
        **_: object,
    ) -> list[SampleResult]:
        prompts = {problem.id: token_array([65]) for problem in problems}
        request = SampleRequest(problems=problems, prompts=prompts, samples=samples)
        results = cache.load(request)
        for result in results.values():
            on_sample(result, saved=True)
        missing = [(problem, sample) for problem, sample in request.pairs if (problem.id, sample) not in results]
        self.requests.append([(problem.id, sample) for problem, sample in missing])
        for trajectory in self.sample(missing):
            results[trajectory.prompt_id, trajectory.sample] = result = cache.add(trajectory)
            on_sample(result, saved=False)
        return [results[problem.id, sample] for problem, sample in request.pairs]


@pytest.fixture
def attempt(new_attempt: NewAttempt, tmp_path: Path) -> Callable[..., StageContext]:
    """Return a function that creates an attempt of the stage."""
    rows = [{"id": str(number), "problem": f"{number}", "answer": "1"} for number in range(PROBLEMS)]
    (tmp_path / "base").mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "base" / name).write_text("{}")
    (tmp_path / "rl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return lambda number=1: new_attempt("f", attempt=number)


async def run(ctx: StageContext, rollouts: FakeRollouts) -> Outcome:
    return await stage.run(ctx, fake_sessions(rollouts))


@pytest.fixture(autouse=True)
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "TRACKED_SAMPLES", FILE_SAMPLES)


def file_sizes(ctx: StageContext) -> list[int]:
    """Return the number of trajectories in each file."""
    return [len(trajectory_store.read(file)) for _, file in trajectory_store.step_files(ctx.folder.trajectories)]


def reported_steps(ctx: StageContext) -> list[int]:
    """Return the steps whose figures are in the journal, of all attempts."""
    events = [json.loads(line) for line in journal_file(ctx.state.root).read_text().splitlines()]
    return [event["step"] for event in events if "filter/kept" in event.get("values", {})]


def stored(ctx: StageContext) -> list[SampleKey]:
    """Return the samples in the files, in their order."""
    files = trajectory_store.step_files(ctx.folder.trajectories)
    return [(row.prompt_id, row.sample) for _, file in files for row in trajectory_store.read(file)]


def kept(ctx: StageContext) -> list[str]:
    return [json.loads(line)["id"] for line in ctx.folder.kept_file.read_text().splitlines()]


async def test_filter_samples_one_stream_and_writes_all(attempt: Callable[..., StageContext]) -> None:
    """All samples are requested together; files hold whole problems; the report counts the solved samples."""
    ctx, rollouts = attempt(), FakeRollouts()
    outcome = await run(ctx, rollouts)
    assert rollouts.requests == [ALL]
    assert file_sizes(ctx) == [16, 16, 8]
    assert stored(ctx) == ALL
    assert kept(ctx) == ["0", "2", "4"]
    assert outcome.message == "kept 3 of 5 problems"
    assert reported_steps(ctx) == [20, 40, 40]
    assert ctx.progress.metrics == {"kept": 3.0, "seen": 5.0, "kept_ratio": 0.6}
    report = FilterReport.model_validate_json(ctx.folder.filter_report_file.read_text())
    assert [count.solved for count in report.counts] == [1, 8, 1, 8, 1]
    assert (report.kept, report.dropped, report.samples_per_problem) == (3, 2, SAMPLES)


async def test_filter_reads_files_outside_of_the_loop(
    attempt: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, tokenizer and the first table take seconds, in which engines would miss their health checks."""
    threads: set[int] = set()

    def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            threads.add(threading.get_ident())
            return function(*arguments)

        return call

    monkeypatch.setattr(stage, "load_problems", recorded(stage.load_problems))
    sessions = fake_sessions(FakeRollouts())
    await stage.run(attempt(), replace(sessions, chat_format=recorded(sessions.chat_format)))
    assert len(threads) >= 1 and threading.get_ident() not in threads


def test_sample_cache_load_imports_the_writer_of_tables(tmp_path: Path) -> None:
    """`load` runs in a thread; the first sample, which the loop saves, imports nothing."""
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from rstar2_train.evaluation.sample_cache import SampleCache, SampleRequest\n"
        "before = 'pandas' in sys.modules\n"
        "with SampleCache(Path(sys.argv[1])) as cache: cache.load(SampleRequest(problems=[], prompts={}, samples=1))\n"
        "print(before, 'pandas' in sys.modules)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "samples.jsonl")]
    assert subprocess.run(argv, check=True, capture_output=True, text=True).stdout == "False True\n"


async def test_filter_restart_samples_only_missing_samples(attempt: Callable[..., StageContext]) -> None:
    """A suspended attempt has saved all finished samples; the next attempt generates only the others."""

    def stop_after_20(pairs: Pairs) -> Iterator[Trajectory]:
        yield from [finished(*pair) for pair in pairs[:20]]
        raise SuspendRequested

    rollouts = FakeRollouts(stop_after_20)
    with pytest.raises(SuspendRequested):
        await run(attempt(), rollouts)
    rollouts.sample = slowest_first
    ctx = attempt(2)
    await run(ctx, rollouts)
    assert rollouts.requests == [ALL, ALL[20:]]
    assert kept(ctx) == ["0", "2", "4"]
    assert stored(ctx) == ALL
    assert ctx.progress.metrics["seen"] == PROBLEMS


async def test_filter_restart_samples_lost_samples_again(attempt: Callable[..., StageContext]) -> None:
    """A lost sample is stored only at the end of a stage; a restarted attempt generates it again."""

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
    assert stored(ctx) == ALL


async def test_filter_that_keeps_samples_saves_results_only(attempt: Callable[..., StageContext]) -> None:
    """`rstar2 filter` keeps the samples for a larger run, without their tokens."""
    ctx = attempt()
    ctx.keep_samples = True
    await run(ctx, FakeRollouts())
    assert file_sizes(ctx) == [] and kept(ctx) == ["0", "2", "4"]
    (saved,), (tokens,) = (list(ctx.folder.samples.glob(f"*.{suffix}")) for suffix in ("jsonl", "trajectories"))
    assert len(saved.read_text().splitlines()) == len(ALL) and tokens.stat().st_size == 0


async def test_filter_that_keeps_nothing_fails_with_report(attempt: Callable[..., StageContext]) -> None:
    """Another attempt would keep nothing either. The report shows why."""
    rollouts = FakeRollouts(lambda pairs: (finished(problem, sample, easy=True) for problem, sample in pairs))
    ctx = attempt()
    with pytest.raises(StageFailed, match="the policy solves all 5 problems") as error:
        await run(ctx, rollouts)
    assert (error.value.reason, error.value.retryable) == ("NothingToTrain", False)
    assert FilterReport.model_validate_json(ctx.folder.filter_report_file.read_text()).kept == 0
    assert not ctx.folder.kept_file.exists()


async def test_filter_stale_attempt_writes_nothing(attempt: Callable[..., StageContext]) -> None:
    """An attempt that a newer one replaced fails before it writes results."""
    old = attempt()
    attempt(2)
    with pytest.raises(StageFailed, match="attempt 1 is stale"):
        await run(old, FakeRollouts())
    assert file_sizes(old) == [] and not old.folder.kept_file.exists()
