"""Resample-on-Correct: class counts, probabilities of the draw, reasons, and determinism."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.grpo_roc.penalties import NO_CALL_PENALTY, error_penalty, format_penalty
from rstar2_train.grpo_roc.resample import DELTA, Mode, RolloutStats, class_counts, resample, stable_hash

MODES: tuple[Mode, ...] = ("Paper", "Rank", "Uniform")
WRONG = RolloutStats(reward=0.0, correct=False)
CLEAN = RolloutStats(reward=1.0, correct=True)
FAULTY = RolloutStats(reward=1.0, correct=True, penalty=1.0)
NO_CALL = RolloutStats(reward=1.0, correct=True, penalty=NO_CALL_PENALTY)
LOST = RolloutStats(reward=0.0, correct=False, failed=True)


@st.composite
def rollouts(draw: st.DrawFn) -> RolloutStats:
    calls = draw(st.integers(0, 4))
    p_err = error_penalty(calls=calls, errors=draw(st.integers(0, calls)))
    p_format = format_penalty(
        answers=draw(st.integers(0, 3)), turns=draw(st.integers(1, 5)), balanced=draw(st.booleans())
    )
    correct = draw(st.booleans())
    return RolloutStats(
        reward=float(correct), correct=correct, penalty=p_err + p_format, failed=draw(st.integers(0, 9)) == 0
    )


groups = st.lists(rollouts(), min_size=0, max_size=40)


@pytest.mark.parametrize(
    ("negatives", "positives", "expected"),
    [(0, 32, (0, 16)), (1, 31, (0, 16)), (2, 30, (1, 15)), (7, 25, (3, 13)), (16, 16, (8, 8)), (17, 15, (8, 8)),
     (31, 1, (15, 1)), (32, 0, (16, 0)), (7, 23, (3, 13)), (10, 10, (8, 8)), (5, 15, (4, 12)), (3, 12, (3, 12)),
     (0, 0, (0, 0))],
)  # fmt: skip
def test_class_counts_match_the_paper_for_sixteen(negatives: int, positives: int, expected: tuple[int, int]) -> None:
    """The counts for G = 16 equal the paper's, computed by hand."""
    assert class_counts(negatives=negatives, positives=positives, keep=16) == expected


@pytest.mark.parametrize(
    ("negatives", "positives", "least", "expected"),
    [(1, 31, 1, (1, 15)), (31, 1, 1, (15, 1)), (2, 30, 2, (2, 14)), (30, 2, 2, (14, 2)), (0, 32, 2, (0, 16)),
     (31, 1, 2, (15, 1)), (1, 31, 2, (1, 15)), (16, 16, 8, (8, 8)), (28, 4, 8, (12, 4))],
)  # fmt: skip
def test_class_counts_respect_min_per_class(
    negatives: int, positives: int, least: int, expected: tuple[int, int]
) -> None:
    """Each class is raised to its minimum at the cost of the other."""
    assert class_counts(negatives=negatives, positives=positives, keep=16, min_per_class=least) == expected


@pytest.mark.parametrize(("negatives", "positives", "keep"), [(7, 23, 15), (7, 7, 7)])
def test_class_counts_odd_sizes_sum_to_keep(negatives: int, positives: int, keep: int) -> None:
    """The counts of odd groups sum to G."""
    assert sum(class_counts(negatives=negatives, positives=positives, keep=keep)) == keep


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 40), st.data())
def test_class_counts_always_sum_to_keep(negatives: int, positives: int, keep: int, data: st.DataObject) -> None:
    """For any group the counts sum to G and fit their classes."""
    least = data.draw(st.integers(0, keep // 2))
    wanted = data.draw(st.none() | st.integers(0, 60))
    kept = class_counts(
        negatives=negatives, positives=positives, keep=keep, min_per_class=least, wanted_negatives=wanted
    )
    assert sum(kept) == min(keep, negatives + positives)
    assert 0 <= kept[0] <= negatives
    assert 0 <= kept[1] <= positives
    assert kept[0] >= min(least, negatives)
    assert kept[1] >= min(least, positives)


@given(groups, st.integers(1, 20), st.sampled_from(MODES), st.data())
def test_resample_selection_is_consistent(
    group: list[RolloutStats], keep: int, mode: Mode, data: st.DataObject
) -> None:
    """For any group the kept indices, the reasons and `trainable` agree."""
    least = data.draw(st.integers(0, keep // 2))
    chosen = resample(group, keep=keep, mode=mode, min_per_class=least, seed=(1, 2, "p"))
    alive = [index for index, rollout in enumerate(group) if not rollout.failed]
    assert len(chosen.kept) == min(keep, len(alive))
    assert chosen.kept == sorted(set(chosen.kept))
    assert set(chosen.kept) <= set(alive)
    assert len(chosen.reasons) == len(group)
    assert chosen.trainable == (len({group[index].reward for index in chosen.kept}) > 1)
    for index, (rollout, reason) in enumerate(zip(group, chosen.reasons, strict=True)):
        assert (reason == "dropped: infrastructure") == rollout.failed
        assert reason.startswith("dropped") == (index not in chosen.kept)
        assert reason.startswith("kept") == (index in chosen.kept and chosen.trainable)


@given(groups, st.integers(1, 20), st.sampled_from(MODES), st.integers(0, 2**31))
def test_resample_same_seed_is_deterministic(group: list[RolloutStats], keep: int, mode: Mode, seed: int) -> None:
    """The same seed gives the same selection."""
    first = resample(group, keep=keep, mode=mode, seed=(seed, 3, "problem-7"))
    assert first == resample(list(group), keep=keep, mode=mode, seed=(seed, 3, "problem-7"))


def test_resample_seed_depends_on_step_and_prompt() -> None:
    """Another step or prompt gives another selection."""
    group = [CLEAN, WRONG] * 16
    drawn = {tuple(resample(group, keep=16, seed=(0, step, prompt)).kept) for step in range(4) for prompt in ("a", "b")}
    assert len(drawn) == 8


def test_stable_hash_is_equal_across_processes() -> None:
    """The hash does not depend on the process; different names have different hashes."""
    code = "from rstar2_train.grpo_roc.resample import stable_hash; print(stable_hash((7, 3, 'problem')))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(other.stdout) == stable_hash((7, 3, "problem"))
    assert stable_hash((7, 3, "problem")) != stable_hash((73, "problem"))


@given(st.lists(rollouts(), min_size=2, max_size=32), st.sampled_from(MODES))
@settings(max_examples=50)
def test_resample_small_group_keeps_all(group: list[RolloutStats], mode: Mode) -> None:
    """If at most G rollouts are not lost, all of them are kept."""
    alive = [index for index, rollout in enumerate(group) if not rollout.failed]
    assert resample(group, keep=32, mode=mode, seed=0).kept == alive


@pytest.mark.parametrize("mode", MODES)
def test_resample_can_keep_every_kind_of_failure(mode: Mode) -> None:
    """With two or more wrong rollouts, each of them can be kept."""
    timed_out = RolloutStats(reward=0.0, correct=False, penalty=1.0)
    unanswered = RolloutStats(reward=0.0, correct=False, penalty=NO_CALL_PENALTY + 1.0)
    group = [timed_out, unanswered] + [CLEAN] * 6
    survivors = set(itertools.chain.from_iterable(resample(group, keep=4, mode=mode, seed=s).kept for s in range(60)))
    assert {0, 1} <= survivors


def test_resample_draws_wrong_rollouts_uniformly() -> None:
    """Penalties have no effect on wrong rollouts."""
    group = [RolloutStats(reward=0.0, correct=False, penalty=errors / 4) for errors in range(4)] + [CLEAN] * 4
    draws = 4000
    counts = [0] * 4
    for seed in range(draws):
        for index in resample(group, keep=4, seed=seed).kept:
            if index < 4:
                counts[index] += 1
    # Two of four are kept: each with probability 1/2; five standard errors.
    assert all(abs(count / draws - 0.5) < 5 * (0.25 / draws) ** 0.5 for count in counts)


def test_resample_draws_correct_rollouts_by_inverse_penalty() -> None:
    """Of two correct rollouts, the probability of each is its share of the weights 1/(p + delta)."""
    group = [CLEAN, RolloutStats(reward=1.0, correct=True, penalty=0.25)]
    weights = [1 / DELTA, 1 / (0.25 + DELTA)]
    share = weights[0] / sum(weights)
    draws = 4000
    hits = sum(resample(group, keep=1, seed=seed).kept == [0] for seed in range(draws))
    assert abs(hits / draws - share) < 5 * (share * (1 - share) / draws) ** 0.5


def test_resample_prefers_lower_penalties() -> None:
    """Correct rollouts with lower penalties are kept more often."""
    group = [RolloutStats(reward=1.0, correct=True, penalty=errors / 4) for errors in range(5)] * 2 + [WRONG] * 10
    counts = [0] * 5
    for seed in range(1500):
        for index in resample(group, keep=10, seed=seed).kept:
            if index < 10:
                counts[index % 5] += 1
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[4]


def test_resample_rank_keeps_the_lowest_penalties() -> None:
    """The mode `Rank` keeps the lowest penalties, in sample order."""
    group = [FAULTY, CLEAN, NO_CALL, CLEAN, WRONG, WRONG, WRONG, WRONG]
    for seed in range(20):
        assert [index for index in resample(group, keep=4, mode="Rank", seed=seed).kept if index < 4] == [1, 3]


def test_resample_uniform_ignores_reward_and_penalty() -> None:
    """The mode `Uniform` draws every pair with the same probability."""
    group = [CLEAN, FAULTY, WRONG, WRONG]
    pairs = {pair: 0 for pair in itertools.combinations(range(4), 2)}
    draws = 6000
    for seed in range(draws):
        pairs[tuple(resample(group, keep=2, mode="Uniform", seed=seed).kept)] += 1  # type: ignore[index]
    share = 1 / 6
    assert all(abs(count / draws - share) < 5 * (share * (1 - share) / draws) ** 0.5 for count in pairs.values())


def test_resample_reasons_per_rollout() -> None:
    """Each rollout has the reason for its selection."""
    group = [LOST, WRONG, WRONG, CLEAN, FAULTY]
    chosen = resample(group, keep=2, mode="Rank", seed=0)
    assert chosen.kept[-1] == 3
    assert chosen.reasons[0] == "dropped: infrastructure"
    assert sorted(chosen.reasons[1:3]) == ["dropped: negative", "kept: negative"]
    assert chosen.reasons[3:] == ["kept: positive", "dropped: penalty"]
    assert chosen.trainable


@pytest.mark.parametrize(
    ("group", "reason"),
    [([CLEAN] * 4, "untrained: all correct"), ([WRONG] * 4, "untrained: all wrong"), ([WRONG], "untrained: alone")],
)
def test_resample_without_variance_is_not_trainable(group: list[RolloutStats], reason: str) -> None:
    """A group with equal rewards does not train; its reason names the case."""
    chosen = resample(group, keep=2, seed=0)
    assert not chosen.trainable
    assert {chosen.reasons[index] for index in chosen.kept} == {reason}


def test_resample_min_per_class_keeps_a_single_failure() -> None:
    """The paper's counts drop a single wrong rollout of 32; a minimum per class keeps it."""
    group = [WRONG] + [CLEAN] * 31
    assert not resample(group, keep=16, seed=0).trainable
    assert 0 in resample(group, keep=16, min_per_class=1, seed=0).kept


def test_resample_lost_group_keeps_none() -> None:
    """A group whose rollouts are all lost keeps none."""
    chosen = resample([LOST, LOST], keep=2, seed=0)
    assert chosen.kept == []
    assert not chosen.trainable


@pytest.mark.parametrize(("keep", "least"), [(0, 0), (4, 3), (4, -1)])
def test_resample_invalid_settings_raise(keep: int, least: int) -> None:
    """An impossible keep or minimum is rejected."""
    with pytest.raises(ValueError, match="must be"):
        resample([CLEAN], keep=keep, min_per_class=least, seed=0)
