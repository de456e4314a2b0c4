"""The Filter stage: one stream of samples, what an attempt has written, what the next one asks, what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation import sampling
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleStore
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.stages import filter as stage
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.tracker import journal_file
from tests.support.stage_attempt import Begin

Pairs = Sequence[tuple[Problem, int]]
PROBLEMS = 5
SAMPLES = 8
ALL = [(str(number), sample) for number in range(PROBLEMS) for sample in range(SAMPLES)]
EASY = ["1", "3"]


def ended(problem: Problem, sample: int) -> Trajectory:
    right = problem.id in EASY or sample == 0
    return Trajectory(problem.id, sample, [65], gold=problem.answer, verdict="correct" if right else "wrong")


class Engines:
    """In place of `Rollouts`."""

    asked: list[Pairs]
    """What each call asked."""
    answers: Callable[[Pairs], Iterator[Trajectory]]
    """The trajectories in the order in which they end; it may raise."""

    def __init__(self, *_: object) -> None:
        pass

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
        request = sampling.SampleRequest(problems=problems, prompts=prompts, samples=samples)
        return await sampling.sample_missing(
            request, saved=store.load(request), store=store, context=Any, on_sample=lambda _: None
        )


async def ask_all(pairs: Pairs, *, on_done: Callable[[Trajectory], None], **_: object) -> None:
    Engines.asked.append([(problem.id, sample) for problem, sample in pairs])
    for trajectory in Engines.answers(pairs):
        on_done(trajectory)


def slowest_first_last(pairs: Pairs) -> Iterator[Trajectory]:
    """First samples end last, the very first last of all: whoever waits for it asks nothing else meanwhile."""
    yield from (ended(*pair) for pair in sorted(pairs, key=lambda pair: (pair[1], pair[0].id), reverse=True))


@pytest.fixture
def attempt(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StageContext]:
    """Makes attempts of a stage that writes twelve samples at a time."""
    monkeypatch.setattr(stage, "RolloutSession", Engines)
    monkeypatch.setattr(stage, "load_chat_format", lambda *_: None)
    monkeypatch.setattr(stage, "SLICE_ROLLOUTS", 12)
    monkeypatch.setattr(sampling, "collect_trajectories", ask_all)
    monkeypatch.setattr(Engines, "asked", [], raising=False)
    monkeypatch.setattr(Engines, "answers", staticmethod(slowest_first_last), raising=False)
    rows = [{"id": str(number), "problem": f"{number}", "answer": "1"} for number in range(PROBLEMS)]
    (tmp_path / "rl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def one(number: int = 1) -> StageContext:
        return begin("f", attempt=number)

    return one


def files(ctx: StageContext) -> list[int]:
    """Trajectories in each file."""
    return [len(trajectory_store.read(file)) for _, file in trajectory_store.step_files(ctx.folder.trajectories)]


def told(ctx: StageContext) -> list[int]:
    """The steps that figures were told of, by all attempts."""
    events = [json.loads(line) for line in journal_file(ctx.state.root).read_text().splitlines()]
    return [event["step"] for event in events if "filter/kept" in event.get("values", {})]


def kept(ctx: StageContext) -> list[str]:
    return [json.loads(line)["id"] for line in ctx.folder.kept_file.read_text().splitlines()]


async def test_all_problems_are_asked_at_once_and_written_in_slices(attempt: Callable[..., StageContext]) -> None:
    ctx = attempt()
    outcome = await stage.run(ctx)
    assert Engines.asked == [ALL]
    assert files(ctx) == [16, 16, 8]
    assert kept(ctx) == ["0", "2", "4"]
    assert outcome.message == "kept 3 of 5 problems"
    assert (ctx.progress.step, ctx.progress.total_steps) == (4, 4)
    assert told(ctx) == [1, 2, 4]
    assert ctx.progress.metrics == {"kept": 3.0, "seen": 5.0, "kept_ratio": 0.6}


async def test_an_attempt_asks_only_what_none_before_has_written(
    attempt: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(pairs: Pairs) -> Iterator[Trajectory]:
        yield from [ended(*pair) for pair in pairs[:20]]
        raise SuspendRequested

    monkeypatch.setattr(Engines, "answers", staticmethod(stopped))
    ctx = attempt()
    with pytest.raises(SuspendRequested):
        await stage.run(ctx)
    assert files(ctx) == [16, 4], "what had ended is written, the rest of a slice too"
    monkeypatch.setattr(Engines, "answers", staticmethod(slowest_first_last))
    ctx = attempt(2)
    await stage.run(ctx)
    assert Engines.asked == [ALL, ALL[20:]]
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
    assert told(ctx) == [1, 2, 4]


async def test_what_infrastructure_lost_is_kept_to_the_end_and_asked_again_by_another_attempt(
    attempt: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(pairs: Pairs) -> Iterator[Trajectory]:
        for problem, sample in pairs:
            trajectory = ended(problem, sample)
            if (problem.id, sample) == ("1", 2):
                trajectory.stop, trajectory.verdict = "infrastructure", "internal"
            yield trajectory

    def stopped(pairs: Pairs) -> Iterator[Trajectory]:
        yield from losing(pairs)
        raise SuspendRequested

    monkeypatch.setattr(Engines, "answers", staticmethod(stopped))
    with pytest.raises(SuspendRequested):
        await stage.run(attempt())
    monkeypatch.setattr(Engines, "answers", staticmethod(losing))
    ctx = attempt(2)
    await stage.run(ctx)
    assert Engines.asked == [ALL, [("1", 2)]]
    assert kept(ctx) == ["0", "1", "2", "4"], "nobody saw it solved each time"
    assert sum(files(ctx)) == len(ALL)


async def test_an_attempt_that_another_has_replaced_writes_nothing(
    attempt: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = attempt()
    attempt(2)
    with pytest.raises(StageFailed, match="has taken over"):
        await stage.run(old)
    assert files(old) == []
