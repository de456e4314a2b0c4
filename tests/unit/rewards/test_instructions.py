"""Instructions as what a problem is graded by: how they are written, what becomes of them, and what of a response."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.rewards.grade import grade
from rstar2_train.rewards.instructions import (
    Instruction,
    as_gold,
    described,
    follow,
    followed_of,
    is_gold,
    of_gold,
    read_instructions,
    score,
)
from rstar2_train.rewards.verify import Score
from rstar2_train.rewards.visible_text import visible_text

ROWS = [
    {"id": "punctuation:no_comma", "num_words": None},
    {"id": "keywords:existence", "keywords": ["rød", 'a"b']},
    {"id": "length_constraints:number_words", "relation": "at least", "num_words": 3.0},
]
GOLD = as_gold(read_instructions(ROWS))


def test_they_are_read_and_written_as_text() -> None:
    read = read_instructions(ROWS)
    assert read == [
        Instruction("punctuation:no_comma", {}),
        Instruction("keywords:existence", {"keywords": ["rød", 'a"b']}),
        Instruction("length_constraints:number_words", {"num_words": 3, "relation": "at least"}),
    ]
    assert is_gold(GOLD) and of_gold(GOLD) == read and as_gold(of_gold(GOLD)) == GOLD
    assert json.loads(GOLD)["instructions"][0] == {"id": "punctuation:no_comma"}
    assert described(GOLD).startswith("punctuation:no_comma; keywords:existence (keywords ['rød', ")


@pytest.mark.parametrize("answer", ["42", "\\text{(C)}", '{"a": 1}', "[]", "{}"])
def test_a_known_answer_is_not_taken_for_instructions(answer: str) -> None:
    assert not is_gold(answer)
    with pytest.raises(ValueError, match="not a list of instructions"):
        of_gold(answer)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("punctuation:no_comma", "must be a list"),
        ([], "with at least one"),
        (["punctuation:no_comma"], r"instructions\[0\] must be an object"),
        ([{"id": "punctuation:none"}], "there is no instruction 'punctuation:none'; there are: change_case:capital"),
        ([{"id": "punctuation:no_comma", "n": 1}], "takes no arguments; given: n"),
        ([{"id": "startend:end_checker"}], "takes end_phrase; given: none"),
        ([{"id": "startend:end_checker", "end_phrase": " "}], "end_phrase must be a text"),
        ([{"id": "detectable_format:number_bullet_lists", "num_bullets": -1}], "must be a whole number"),
        ([{"id": "detectable_format:number_bullet_lists", "num_bullets": True}], "must be a whole number"),
        ([{"id": "detectable_format:number_bullet_lists", "num_bullets": 1.5}], "must be a whole number"),
        ([{"id": "keywords:existence", "keywords": []}], "must be a list of texts"),
        (
            [{"id": "keywords:letter_frequency", "letter": "ab", "let_frequency": 1, "let_relation": "at least"}],
            "must be one character",
        ),
        (
            [{"id": "length_constraints:number_words", "num_words": 1, "relation": "at most"}],
            "must be less than or at least",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_instructions(value)


def test_loosely_a_line_at_either_end_and_asterisks_may_be_in_the_way() -> None:
    end = Instruction("startend:end_checker", {"end_phrase": "The end."})
    quoted, comma = Instruction("startend:quotation", {}), Instruction("punctuation:no_comma", {})
    words = Instruction("length_constraints:number_words", {"num_words": 3, "relation": "less than"})
    assert follow("It is.\nThe end.", [end, quoted, comma]) == ["strict", "no", "strict"]
    assert follow("It is.\nThe end.\nGood luck!", [end]) == ["loose"]
    assert follow("Sure, here:\nIt is", [comma]) == ["loose"]
    assert follow('Sure:\n"It is"\nDone.', [quoted]) == ["loose"]
    assert follow('*"It is"*', [quoted]) == ["loose"]
    assert follow('Sure:\n*"It is"*\nDone.', [quoted, words]) == ["loose", "loose"]
    assert follow('a\n"b"\nc\nd', [quoted]) == ["no"]
    assert follow(" \n ", [comma]) == ["no"]


def test_a_response_is_right_when_all_are_followed_strictly() -> None:
    read = read_instructions(ROWS)
    assert score('rød a"b c', read) == Score("correct", "strict, strict, strict")
    assert score('A,\nrød a"b c, b\nc,', read) == Score("wrong", "no, strict, strict")
    assert score('Well,\nrød a"b c', read) == Score("wrong", "loose, strict, strict")
    assert score("  ", read) == Score("no_answer", None)
    assert followed_of("loose, strict, no", read) == ["loose", "strict", "no"]
    assert followed_of(None, read) == ["no", "no", "no"]


@pytest.mark.parametrize(
    ("last_turn", "shown"),
    [
        ("It is green.\n", "It is green."),
        ("<reason>Hm, commas.</reason>\nIt is green.", "It is green."),
        ("Hm, commas.</reason>It is green.", "It is green."),
        ("Hm.</think>One.<think>Two.</think> Three.", "One. Three."),
        ("<think>Never ends, so nothing is said.", ""),
        ("<reason>a</reason><answer>\nIt is green.\n</answer>", "It is green."),
        ("Here: <answer>One</answer> or <answer>Two</answer> done", "Two"),
        ("<reason><answer>One</answer></reason>Two", "Two"),
        ("<answer>It is green.", "<answer>It is green."),
        ("a</reason></reason>b", "b"),
        ("", ""),
    ],
)
def test_what_the_reader_sees(last_turn: str, shown: str) -> None:
    assert visible_text(last_turn) == shown


class NoJudge:
    """A judge that must not be asked."""

    async def run(self, code: str, stdin: str = "", **more: Any) -> Any:
        raise JudgeUnavailable("asked")


async def test_a_response_is_graded_by_what_its_problem_has() -> None:
    said = '<reason>x, y</reason>rød a"b c'
    earlier = "I call, then: <answer>\\boxed{42}</answer>"
    assert await grade(f"{earlier}\n{said}", said, GOLD, judge=NoJudge()) == Score("correct", "strict, strict, strict")
    assert await grade(f"{earlier}\n{said}", said, "42", judge=NoJudge()) == Score("correct", "42")
    with pytest.raises(JudgeUnavailable):
        await grade(earlier, said, "6*7", judge=NoJudge())
