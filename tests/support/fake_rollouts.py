"""Replacements of engines, judge and tokenizer for the unit tests of a GRPO stage."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from rstar2_train.data.problems import Problem
from rstar2_train.rollout.trajectory import Segment, Trajectory
from tests.support.stage_attempt import FakeTrainerGroup
from tests.support.token_arrays import logprob_array, token_array


class FakeRollouts:
    """Replaces RolloutSession: every problem has one correct and one wrong rollout."""

    def __init__(
        self,
        *,
        on_push: Callable[[str], None] = lambda _: None,
        before_sample: Callable[[], Any] | None = None,
        rejected: Sequence[str] = (),
    ) -> None:
        """`on_push`: called with each pushed version; `before_sample`: a coroutine function that is awaited first.

        `rejected`: versions that the engines reject once.
        """
        self.weights = self
        self.pushed: list[str] = []
        self.exported = ""
        self._rejected = list(rejected)
        self._on_push = on_push
        self._before_sample = before_sample

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def push(self, group: FakeTrainerGroup, version: str) -> None:
        self._on_push(version)
        self.pushed.append(version)

    async def export(self, group: FakeTrainerGroup, version: str) -> None:
        self.exported = version

    async def load_exported(self) -> bool:
        version = self.exported
        self._on_push(version)
        if version in self._rejected:
            self._rejected.remove(version)
            return False
        self.pushed.append(version)
        return True

    async def push_folder(self, folder: Path, version: str) -> None:
        self.pushed.append(version)

    async def sample_groups(
        self,
        problems: Sequence[Problem],
        *,
        samples: int,
        on_group: Callable[[list[Trajectory]], None],
        **_: object,
    ) -> None:
        if self._before_sample is not None:
            await self._before_sample()
        for problem in problems:
            on_group([rollout(problem, sample) for sample in range(samples)])

    def drain_metrics(self, groups: Sequence[Sequence[Trajectory]], *, seconds: float | None) -> dict[str, float]:
        return {"engines/count": 1.0}


class CharacterFormat:
    """Replaces ChatFormat: a token is a character."""

    stop_ids = (0,)
    tokenizer = None

    def problem_ids(self, problem: Problem) -> array[int]:
        return token_array(map(ord, problem.problem))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def rollout(problem: Problem, sample: int) -> Trajectory:
    correct = sample % 2 == 0
    return Trajectory(
        prompt_id=problem.id, sample=sample, prompt_ids=token_array([65]), gold=problem.answer, turns=1, answer_tags=1,
        segments=[Segment("model", token_array([66]), logprobs=logprob_array([-0.5]))],
        verdict="correct" if correct else "wrong", reward=float(correct),
    )  # fmt: skip
