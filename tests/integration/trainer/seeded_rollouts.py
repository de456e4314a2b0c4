"""Rollouts of random tokens, as those of an exact engine: a resumed stage has the same ones as an undisturbed one."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from rstar2_train.rollout.trajectory import Trajectory
from tests.support.fake_rollouts import FakeRollouts, rollout
from tests.support.token_arrays import logprob_array, token_array


class SeededRollouts(FakeRollouts):
    """The tokens depend on seed, step, problem and sample alone."""

    def __init__(self, sampled: Counter[str] | None = None) -> None:
        """`sampled`: counts how often each group is sampled, over several attempts."""
        super().__init__()
        self._sampled = Counter() if sampled is None else sampled

    async def sample_groups(self, problems: Any, *, samples: int, on_group: Any, seed: Any, **_: object) -> None:
        self._sampled.update(f"{seed} {problem.id}" for problem in problems)
        for problem in problems:
            on_group([seeded(rollout(problem, sample), seed) for sample in range(samples)])


def seeded(row: Trajectory, seed: tuple[int | str, ...]) -> Trajectory:
    """Return the rollout with the tokens of its seed."""
    draw = random.Random(f"{seed} {row.prompt_id} {row.sample}")
    ids = [draw.randrange(600) for _ in range(draw.randint(8, 40))]
    segment = replace(row.segments[0], token_ids=token_array(ids), logprobs=logprob_array([-6.0] * len(ids)))
    return replace(row, prompt_ids=token_array(ids[:4]), segments=[segment])
