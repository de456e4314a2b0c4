"""What a step takes up again after a kill, and what it must sample anew."""

import pytest

from rstar2_train.data.problems import Problem
from rstar2_train.orchestrator.selection import stored_groups
from rstar2_train.rollout.trajectory import Trajectory

PROBLEMS = [Problem("a", "1+1", "2"), Problem("b", "1+2", "3")]


def rollouts(*ids: str) -> list[Trajectory]:
    return [Trajectory(prompt_id=name, sample=index, prompt_ids=[1], gold="2") for index, name in enumerate(ids)]


def test_groups_come_back_in_the_order_of_the_steps_problems() -> None:
    groups = stored_groups(rollouts("b", "a", "b", "a"), problems=PROBLEMS, rollouts_per_prompt=2)
    assert groups is not None
    assert [[t.prompt_id for t in group] for group in groups] == [["a", "a"], ["b", "b"]]


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (("a", "a", "b"), "a rollout is missing"),
        (("a", "a", "b", "b", "b"), "there were more a prompt"),
        (("a", "a", "c", "c"), "other data"),
        (("a", "a", "b", "b", "c", "c"), "more prompts a step"),
        (("a", "a"), "fewer prompts a step"),
    ],
)
def test_rollouts_of_other_settings_or_data_are_not_this_steps(ids: tuple[str, ...], why: str) -> None:
    assert stored_groups(rollouts(*ids), problems=PROBLEMS, rollouts_per_prompt=2) is None, why
