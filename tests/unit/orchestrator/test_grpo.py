"""The steps of a GRPO stage: what an attempt that ends in one has written, and what the next one goes on with."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from rstar2_train.api.contracts import StageFailed, write_model
from rstar2_train.data.problems import Problem
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.stages import grpo
from rstar2_train.rollout.trajectory import Segment, Trajectory
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.trainer import checkpoint
from tests.support.stage_attempt import Begin, Group


class Engines:
    """In place of `Rollouts`: one right and one wrong rollout of each problem."""

    on_push: Callable[[str], None]
    pushed: list[str]

    def __init__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def push_weights(self, group: Group, version: str) -> None:
        self.on_push(version)
        self.pushed.append(version)

    async def push_folder(self, folder: Path, version: str) -> None:
        self.pushed.append(version)

    async def sample_groups(self, problems: Sequence[Problem], *, samples: int, **_: object) -> list[list[Trajectory]]:
        return [[rollout(problem, sample) for sample in range(samples)] for problem in problems]


class Words:
    """In place of the protocol: a token is a character."""

    def prompt_ids(self, text: str, *, as_is: bool) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def rollout(problem: Problem, sample: int) -> Trajectory:
    right = sample % 2 == 0
    return Trajectory(
        prompt_id=problem.id, sample=sample, prompt_ids=[65], gold=problem.answer, turns=1, answer_tags=1,
        segments=[Segment("model", [66], logprobs=[-0.5])],
        verdict="correct" if right else "wrong", reward=float(right),
    )  # fmt: skip


@pytest.fixture
def stage(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StageContext]:
    """Makes attempts of a stage of four steps."""
    monkeypatch.setattr(grpo, "RolloutSession", Engines)
    monkeypatch.setattr(grpo, "load_chat_format", lambda *_: Words())
    monkeypatch.setattr(Engines, "on_push", staticmethod(lambda _: None), raising=False)
    monkeypatch.setattr(Engines, "pushed", [], raising=False)
    (tmp_path / "rl.jsonl").write_text(
        "".join(json.dumps({"id": f"{n}", "problem": f"{n}", "answer": "1"}) + "\n" for n in range(4))
    )

    def one(stages: str = "g", number: int = 0, *, attempt: int = 1, every: int = 1, **more: Any) -> StageContext:
        settings = {"promptsPerStep": 2, "rolloutsPerPrompt": 2, "keepPerPrompt": 2, **more}
        return begin(stages, number, attempt=attempt, checkpoint={"everySteps": every, "keepLast": 10}, grpo=settings)

    return one


def told(ctx: StageContext) -> list[tuple[int, str]]:
    """What the journal has of each step: its reward and its times, each as often as it was told."""
    events = [json.loads(line) for line in journal_file(ctx.state.root).read_text().splitlines()]
    shown = ("reward/mean", "time/rollout_seconds", "time/weights_seconds", "time/step_seconds")
    return [
        (event["step"], name)
        for event in events
        if event["kind"] == "metrics" and event["step"]
        for name in event["values"]
        if name in shown
    ]


def kept(ctx: StageContext) -> list[int]:
    return [step for step, _ in checkpoint.list_checkpoints(ctx.folder.checkpoints)]


async def test_a_step_that_has_a_checkpoint_is_told_once_though_its_push_failed(
    stage: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(version: str) -> None:
        if version == "g0-step-000002":
            raise StageFailed("EngineUnavailable", "all engines are away", retryable=True)

    monkeypatch.setattr(Engines, "on_push", staticmethod(lost))
    ctx = stage()
    with pytest.raises(StageFailed, match="all engines are away"):
        await grpo.run(ctx)
    assert kept(ctx) == [1, 2]
    whole = ["reward/mean", "time/rollout_seconds"]
    pushed = ["time/weights_seconds", "time/step_seconds"]
    assert told(ctx) == [(1, name) for name in whole + pushed] + [(2, name) for name in whole]
    assert '"kind":"trace"' in journal_file(ctx.state.root).read_text()

    monkeypatch.setattr(Engines, "on_push", staticmethod(lambda _: None))
    ctx = stage(attempt=2)
    outcome = await grpo.run(ctx)
    assert (outcome.outcome, outcome.checkpoint and outcome.checkpoint.step) == ("completed", 4)
    rewards = [step for step, name in told(ctx) if name == "reward/mean"]
    assert rewards == [1, 2, 3, 4]
    last = checkpoint.verify(checkpoint.checkpoint_path(ctx.folder.checkpoints, 4))
    assert last.extra["best"] == [0.5, 1], "all rewards are equal: the first checkpoint stays the best"


async def test_asked_to_stop_during_an_update_it_writes_a_checkpoint_and_pushes_nothing(
    stage: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = stage(every=100)

    def stop(group: Group) -> None:
        if group.weights == 2:
            ctx.stopping.set()

    monkeypatch.setattr(Group, "on_step", staticmethod(stop))
    with pytest.raises(SuspendRequested):
        await grpo.run(ctx)
    assert kept(ctx) == [2]
    assert Engines.pushed == ["g0-step-000000", "g0-step-000001"]

    ctx = stage(attempt=2, every=100)
    outcome = await grpo.run(ctx)
    assert outcome.outcome == "completed"
    assert Engines.pushed[2:] == ["g0-step-000002", "g0-step-000003", "g0-step-000004"]
    assert (ctx.folder.model / "weights.json").read_text() == "4"


async def test_a_checkpoint_is_written_while_the_engines_sample_and_before_the_next_update(
    stage: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampled, seen = threading.Event(), list[str]()

    async def sample_groups(self: Engines, problems: Sequence[Problem], **more: Any) -> list[list[Trajectory]]:
        if "update 2" in seen:
            await asyncio.sleep(0.05)  # the save has begun
            seen.append("sampled")
            sampled.set()
        return await plain(self, problems, **more)

    def save(step: int) -> None:
        assert sampled.wait(10), "nothing was sampled meanwhile"
        seen.append(f"saved {step}")

    plain = Engines.sample_groups
    monkeypatch.setattr(Engines, "sample_groups", sample_groups)
    monkeypatch.setattr(Group, "on_save", staticmethod(save))
    monkeypatch.setattr(Group, "on_step", staticmethod(lambda group: seen.append(f"update {group.weights:.0f}")))
    ctx = stage(every=2)
    await grpo.run(ctx)
    assert seen[:5] == ["update 1", "update 2", "sampled", "saved 2", "update 3"]
    assert kept(ctx) == [2, 4]


async def test_a_checkpoint_that_cannot_be_written_aside_ends_the_stage(
    stage: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(step: int) -> None:
        if step == 2:
            raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Group, "on_save", staticmethod(full))
    ctx = stage()
    with pytest.raises(StageFailed, match="no space left"):
        await grpo.run(ctx)
    assert kept(ctx) == [1]
    assert [step for step, name in told(ctx) if name == "reward/mean"] == [1, 2]


@pytest.mark.parametrize("reset", [False, True])
async def test_only_a_stage_with_a_fresh_optimizer_warms_up(stage: Callable[..., StageContext], reset: bool) -> None:
    for number, expected in enumerate([[0.25, 0.5, 0.75, 1.0], [0.25, 0.5, 0.75, 1.0] if reset else [1.0] * 4]):
        ctx = stage("gg", number, learningRate=1.0, warmupSteps=4, resetOptimizer=reset)
        write_model(ctx.folder.outcome_file, await grpo.run(ctx))
        events = map(json.loads, journal_file(ctx.state.root).read_text().splitlines())
        values = [event["values"] for event in events if event["kind"] == "metrics" and event["run"] == ctx.stage.name]
        assert [step["trainer/lr"] for step in values if "trainer/lr" in step] == expected
