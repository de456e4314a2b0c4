"""Words, eight of them in a row, and near duplicates: everything that is planted is found, and nothing else."""

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
def test_words_do_not_depend_on_the_typesetting(text: str, expected: str) -> None:
    assert " ".join(normalized_words(text)) == expected


def _words(rng: random.Random, count: int) -> list[str]:
    return [f"w{rng.randrange(10**9)}" for _ in range(count)]


def test_eight_shared_words_are_found_wherever_they_stand_and_seven_are_not() -> None:
    rng = random.Random(0)
    benchmarks = Benchmarks()
    problems = [_words(rng, rng.randint(GRAM, 60)) for _ in range(200)]
    for index, problem in enumerate(problems):
        benchmarks.add(problem, f"bench:{index}")
    for index, problem in enumerate(problems):
        start = rng.randint(0, len(problem) - GRAM)
        before, after = _words(rng, rng.randint(0, 30)), _words(rng, rng.randint(0, 30))
        shared = problem[start : start + GRAM]
        assert benchmarks.overlap([*before, *shared, *after]) == Overlap(" ".join(shared), f"bench:{index}")
        assert benchmarks.overlap([*before, *shared[1:], *after]) is None


def test_a_short_benchmark_problem_overlaps_with_the_same_words_only() -> None:
    benchmarks = Benchmarks()
    benchmarks.add(normalized_words("What is two plus two?"), "b:1")
    assert benchmarks.overlap(normalized_words("What is two plus two?")) == Overlap("what is two plus two", "b:1")
    assert benchmarks.overlap(normalized_words("What is two plus three?")) is None
    assert benchmarks.overlap(normalized_words("Now what is two plus two and so on?")) is None


def _jaccard(one: list[str], other: list[str]) -> float:
    left, right = set(pairwise(one)) or {tuple(one)}, set(pairwise(other)) or {tuple(other)}
    return len(left & right) / len(left | right)


def _brute_force(problems: list[tuple[list[str], str]], similarity: float) -> dict[int, int]:
    """The definition itself: each problem against every earlier one that stays."""
    kept: list[int] = []
    dropped: dict[int, int] = {}
    for index, (text, answer) in enumerate(problems):
        numbers = sorted(word for word in text if word.isdecimal())
        for other in kept:
            earlier, its_answer = problems[other]
            same = its_answer == answer and sorted(word for word in earlier if word.isdecimal()) == numbers
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
def test_near_duplicates_are_those_of_the_definition(problems: list[tuple[list[str], str]], similarity: float) -> None:
    near = NearDuplicates(similarity=similarity)
    for text, answer in problems:
        near.add(text, answer)
    assert {index: duplicate.of for index, duplicate in near.find().items()} == _brute_force(problems, similarity)


def test_of_near_duplicates_the_first_stays_and_other_numbers_or_answers_are_other_problems() -> None:
    text = normalized_words("How many ways are there to seat 6 guests around a round table with two of them apart?")
    near = NearDuplicates(similarity=0.7)
    near.add(text, "12")
    near.add([*text, "please"], "12")
    near.add(["7" if word == "6" else word for word in text], "12")
    near.add(text, "13")
    near.add(["find", *text[3:]], "12")
    found = near.find()
    assert {index: duplicate.of for index, duplicate in found.items()} == {1: 0, 4: 0}
    assert found[1].similarity == pytest.approx(17 / 18)
