"""Normalised words, decontamination and near duplicates: all planted matches are found, and no others."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.data.prepare.decontaminate import GRAM, Benchmarks, Overlap
from rstar2_train.data.prepare.near_duplicates import NearDuplicates
from rstar2_train.data.prepare.normalize import normalized_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"$\dfrac{1}{2}x$", "frac 1 2 x"),
        (r"\left( \frac 1 2 \right) \text{cm}", "frac 1 2 cm"),
        (r"1,234,567 and 1{,}234 and 12,34", "1234567 and 1234 and 12 34"),
        ("Évaluate 2x² + Ä", "évaluate 2 x 2 ä"),
        ("ﬁnd \uff11\uff12", "find 12"),
        ("求12的值", "求 12 的 值"),
        (r"\leftarrow \textual", "leftarrow textual"),
        ("$$ + - ,", ""),
    ],
)
def test_normalized_words_ignore_typesetting(text: str, expected: str) -> None:
    """The words of a text do not depend on its typesetting."""
    assert " ".join(normalized_words(text)) == expected


def _random_words(rng: random.Random, count: int) -> list[str]:
    return [f"w{rng.randrange(10**9)}" for _ in range(count)]


def test_overlap_needs_eight_consecutive_words() -> None:
    """Eight shared consecutive words are found at any position; seven are not an overlap."""
    rng = random.Random(0)
    benchmarks = Benchmarks()
    problems = [_random_words(rng, rng.randint(GRAM, 60)) for _ in range(200)]
    for index, problem in enumerate(problems):
        benchmarks.add(problem, f"bench:{index}")
    for index, problem in enumerate(problems):
        start = rng.randint(0, len(problem) - GRAM)
        before, after = _random_words(rng, rng.randint(0, 30)), _random_words(rng, rng.randint(0, 30))
        shared = problem[start : start + GRAM]
        assert benchmarks.overlap([*before, *shared, *after]) == Overlap(" ".join(shared), f"bench:{index}")
        assert benchmarks.overlap([*before, *shared[1:], *after]) is None


def test_overlap_with_short_problem_needs_equal_text() -> None:
    """A benchmark problem of fewer than eight words overlaps only with the same words."""
    benchmarks = Benchmarks()
    benchmarks.add(normalized_words("What is two plus two?"), "b:1")
    assert benchmarks.overlap(normalized_words("What is two plus two?")) == Overlap("what is two plus two", "b:1")
    assert benchmarks.overlap(normalized_words("What is two plus three?")) is None
    assert benchmarks.overlap(normalized_words("Now what is two plus two and so on?")) is None


def _jaccard(first: list[str], second: list[str]) -> float:
    left, right = set(pairwise(first)) or {tuple(first)}, set(pairwise(second)) or {tuple(second)}
    return len(left & right) / len(left | right)


def _brute_force(problems: list[tuple[list[str], str]], similarity: float) -> dict[int, int]:
    """The definition: compare each problem with every earlier problem that is kept."""
    kept: list[int] = []
    dropped: dict[int, int] = {}
    for index, (text, answer) in enumerate(problems):
        numbers = sorted(word for word in text if word.isdecimal())
        for other in kept:
            earlier, earlier_answer = problems[other]
            same = earlier_answer == answer and sorted(word for word in earlier if word.isdecimal()) == numbers
            if same and _jaccard(earlier, text) >= similarity:
                dropped[index] = other
                break
        else:
            kept.append(index)
    return dropped


TEXTS = st.lists(st.sampled_from(["a", "b", "c", "1", "2"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    problems=st.lists(st.tuples(TEXTS, st.sampled_from(["7", "8"])), max_size=25),
    similarity=st.sampled_from([0.1, 0.5, 0.6, 0.7, 0.8, 1.0]),
)
def test_near_duplicates_equal_brute_force(problems: list[tuple[list[str], str]], similarity: float) -> None:
    """Prefix filtering gives the result of the definition."""
    near = NearDuplicates(similarity=similarity)
    for text, answer in problems:
        near.add(text, answer)
    assert {index: duplicate.of for index, duplicate in near.find().items()} == _brute_force(problems, similarity)


def test_near_duplicates_keep_first_and_other_numbers() -> None:
    """The first near duplicate is kept. Other numbers or answers make another problem."""
    text = normalized_words("How many ways are there to seat 6 guests around a round table with two of them apart?")
    near = NearDuplicates(similarity=0.7)
    near.add(text, "12")
    near.add([*text, "please"], "12")
    near.add(["7" if word == "6" else word for word in text], "12")
    near.add(text, "13")
    near.add(["find", *text[3:]], "12")
    duplicates = near.find()
    assert {index: duplicate.of for index, duplicate in duplicates.items()} == {1: 0, 4: 0}
    assert duplicates[1].similarity == pytest.approx(17 / 18)
