"""Which stored rollouts of a step a restarted attempt uses, and which it samples again."""

import pytest

from rstar2_train.data.problems import Problem
from rstar2_train.orchestrator.selection import regroup_stored
from rstar2_train.rollout.trajectory import Trajectory

PROBLEMS = [Problem("a", "1+1", "2"), Problem("b", "1+2", "3")]


def rollouts(*ids: str) -> list[Trajectory]:
    return [Trajectory(prompt_id=name, sample=index, prompt_ids=[1], gold="2") for index, name in enumerate(ids)]


def test_regroup_stored_follows_the_order_of_problems() -> None:
    """The groups come in the order of the step's problems, not in the order of the file."""
    groups = regroup_stored(rollouts("b", "a", "b", "a"), problems=PROBLEMS, rollouts_per_prompt=2)
    assert groups is not None
    assert [[t.prompt_id for t in group] for group in groups] == [["a", "a"], ["b", "b"]]


@pytest.mark.parametrize(
    ("ids", "difference"),
    [
        (("a", "a", "b"), "a rollout is missing"),
        (("a", "a", "b", "b", "b"), "more rollouts per prompt"),
        (("a", "a", "c", "c"), "other data"),
        (("a", "a", "b", "b", "c", "c"), "more prompts per step"),
        (("a", "a"), "fewer prompts per step"),
    ],
)
def test_regroup_stored_of_other_settings_is_none(ids: tuple[str, ...], difference: str) -> None:
    """Rollouts that were sampled with other settings or data are not used."""
    assert regroup_stored(rollouts(*ids), problems=PROBLEMS, rollouts_per_prompt=2) is None, difference
