"""Which stored rollouts of a step a restarted attempt uses, and which it samples again."""

import pytest

from rstar2_train.analysis.roc import reason_texts
from rstar2_train.api.objectives import ObjectiveSpec, Teacher
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.data.problems import Problem
from rstar2_train.orchestrator.selection import regroup_stored, select_group
from rstar2_train.rollout.trajectory import Segment, Trajectory
from tests.support.token_arrays import logprob_array, token_array

PROBLEMS = [Problem("a", "1+1", "2"), Problem("b", "1+2", "3")]


def rollouts(*ids: str) -> list[Trajectory]:
    return [
        Trajectory(prompt_id=name, sample=index, prompt_ids=token_array([1]), gold="2")
        for index, name in enumerate(ids)
    ]


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


def test_select_group_classes_follow_the_threshold() -> None:
    """A score below the threshold is a negative, the advantage follows the score; equal scores train nothing."""
    group = rollouts("a", "a", "a", "a")
    for trajectory, score in zip(group, (0.2, 0.4, 0.6, 1.0), strict=True):
        trajectory.reward, trajectory.correct_from = score, 0.5
        trajectory.verdict = "correct" if score >= 0.5 else "wrong"
        trajectory.segments = [Segment("model", token_array([1]), logprob_array([-0.5]))]
    settings = GRPOSettings(keep_per_prompt=4)
    sequences = select_group(group, settings=settings, seed=(0, "rl-1", 0))
    assert sequences is not None
    reasons = [trajectory.selection_reason for trajectory in group]
    assert reasons == ["kept: negative", "kept: negative", "kept: positive", "kept: positive"]
    advantages = [sequence.advantage for sequence in sequences]
    assert advantages == sorted(advantages) and len(set(advantages)) == 4
    for trajectory in group:
        trajectory.reward = 0.6
    assert select_group(group, settings=settings, seed=(0, "rl-1", 0)) is None


def test_select_group_sequences_of_a_rollout_share_its_advantage() -> None:
    """Each prompt segment starts a sequence of the update; the prompt of the row is then not trained on."""
    group = rollouts("a", "a")
    for trajectory, reward in zip(group, (0.0, 1.0), strict=True):
        trajectory.reward = reward
        trajectory.segments = [
            Segment("prompt", token_array([5, 6])),
            Segment("model", token_array([7]), logprob_array([-0.5]), [("3", 0)]),
            Segment("tool", token_array([8])),
            Segment("model", token_array([9]), logprob_array([-0.1]), [("4", 0)]),
            Segment("prompt", token_array([5])),
            Segment("model", token_array([3]), logprob_array([-0.2]), [("4", 0)]),
        ]
    sequences = select_group(
        group, settings=GRPOSettings(keep_per_prompt=2), seed=(0, "rl-1", 0), staleness=lambda version: 4 - int(version)
    )
    assert sequences is not None
    for first, second in (sequences[:2], sequences[2:]):
        assert (first.ids.tolist(), first.mask.tolist()) == ([5, 6, 7, 8, 9], [False, False, True, False, True])
        assert first.engine_logprobs is not None and first.staleness is not None
        assert first.engine_logprobs.tolist() == pytest.approx([0, 0, -0.5, 0, -0.1])
        assert first.staleness.tolist() == [0, 0, 1, 0, 0]
        assert (second.ids.tolist(), second.mask.tolist(), second.staleness) == ([5, 3], [False, True], None)
    assert [row.advantage < 0 for row in sequences] == [True, True, False, False]


def test_select_group_masks_truncated_rollouts() -> None:
    """A truncated rollout counts in the mean of its group, and is not trained on."""
    group = rollouts("a", "a", "a")
    for trajectory, (reward, stop) in zip(group, ((1.0, "answered"), (0.0, "answered"), (0.0, "length")), strict=True):
        trajectory.reward, trajectory.stop = reward, stop  # type: ignore[assignment]
        trajectory.segments = [Segment("model", token_array([1]), logprob_array([-0.5]))]
    settings = GRPOSettings(keep_per_prompt=3, objective=ObjectiveSpec(type="DrGRPO", truncated="Mask").settings())
    sequences = select_group(group, settings=settings, seed=(0, "rl-1", 0))
    assert sequences is not None
    assert [sequence.advantage for sequence in sequences] == pytest.approx([2 / 3, -1 / 3])
    assert [trajectory.kept for trajectory in group] == [True, True, False]
    assert group[2].selection_reason == "untrained: truncated"
    assert set(reason_texts("Paper")) >= {trajectory.selection_reason for trajectory in group}


def test_select_group_shapes_long_responses() -> None:
    """The overlong penalty changes the advantages, not which groups train: equal rewards stay without advantage."""
    group = rollouts("a", "a", "a")
    for trajectory, (reward, length) in zip(group, ((1.0, 10), (1.0, 20), (0.0, 5)), strict=True):
        trajectory.reward = reward
        trajectory.segments = [Segment("model", token_array([1] * length), logprob_array([-0.5] * length))]
    objective = ObjectiveSpec(type="DrGRPO", overlong_buffer_ratio=0.5, overlong_penalty=0.5).settings()
    settings = GRPOSettings(keep_per_prompt=3, max_response_tokens=20, objective=objective)
    sequences = select_group(group, settings=settings, seed=(0, "rl-1", 0))
    assert sequences is not None
    assert [sequence.advantage for sequence in sequences] == pytest.approx([0.5, 0.0, -0.5])
    for trajectory in group:
        trajectory.reward = 1.0
    assert select_group(group, settings=settings, seed=(0, "rl-1", 0)) is None


def test_select_group_equal_rewards_train_with_a_teacher() -> None:
    """The teacher's term needs no variance: equal rewards and a single rollout train, with the reward's advantage 0."""
    group = rollouts("a", "a", "a")
    for trajectory in group:
        trajectory.reward, trajectory.verdict = 1.0, "correct"
        trajectory.segments = [Segment("model", token_array([1]), logprob_array([-0.5]))]
    objective = ObjectiveSpec(type="Distillation", teacher=Teacher(source="t"), reward_weight=1.0).settings()
    settings = GRPOSettings(keep_per_prompt=2, objective=objective)
    sequences = select_group(group, settings=settings, seed=(0, "rl-1", 0))
    assert sequences is not None
    assert [sequence.advantage for sequence in sequences] == [0.0, 0.0]
    assert [trajectory.kept for trajectory in group].count(True) == 2
    assert sorted({trajectory.selection_reason for trajectory in group}) == ["dropped: penalty", "kept: positive"]
    for trajectory in group[1:]:
        trajectory.stop = "infrastructure"
    assert len(select_group(group, settings=settings, seed=(0, "rl-1", 0)) or []) == 1
    group[0].stop = "infrastructure"
    assert select_group(group, settings=settings, seed=(0, "rl-1", 0)) is None


def test_select_group_without_a_sampled_token_is_none() -> None:
    """The first observation of an environment may exceed the limit: such a rollout counts in the baseline alone."""
    group = rollouts("a", "a")
    for trajectory in group:
        trajectory.stop = "tool_overflow"
    objective = ObjectiveSpec(type="Distillation", teacher=Teacher(source="t")).settings()
    settings = GRPOSettings(keep_per_prompt=2, objective=objective)
    assert select_group(group, settings=settings, seed=(0, "rl-1", 0)) is None
    assert {(trajectory.kept, trajectory.selection_reason) for trajectory in group} == {(False, "untrained: no token")}
    group[0].segments = [Segment("model", token_array([1]), logprob_array([-0.5]))]
    group[0].reward = 1.0
    (sequence,) = select_group(group, settings=GRPOSettings(keep_per_prompt=2), seed=(0, "rl-1", 0)) or []
    assert sequence.advantage > 0 and [trajectory.kept for trajectory in group] == [True, False]
    assert group[1].selection_reason in reason_texts("Paper")
