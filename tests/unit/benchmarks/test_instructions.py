"""IFEval instructions: their encoding, their outcomes, and the text that they apply to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rstar2_train.benchmarks.ifeval.instructions import (
    Instruction,
    check_instructions,
    decode_instructions,
    decode_outcomes,
    describe_instructions,
    encode_instructions,
    holds_instructions,
    read_instructions,
    score_instructions,
)
from rstar2_train.benchmarks.ifeval.visible_text import visible_text
from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.rewards.grade import grade
from rstar2_train.rewards.verdict import Grade

ROWS = [
    {"id": "punctuation:no_comma", "num_words": None},
    {"id": "keywords:existence", "keywords": ["rød", 'a"b']},
    {"id": "length_constraints:number_words", "relation": "at least", "num_words": 3.0},
]
GOLD = encode_instructions(read_instructions(ROWS))


def test_instructions_survive_encoding() -> None:
    """Instructions are encoded as text and decoded to the same values."""
    read = read_instructions(ROWS)
    assert read == [
        Instruction("punctuation:no_comma", {}),
        Instruction("keywords:existence", {"keywords": ["rød", 'a"b']}),
        Instruction("length_constraints:number_words", {"num_words": 3, "relation": "at least"}),
    ]
    assert (
        holds_instructions(GOLD)
        and decode_instructions(GOLD) == read
        and encode_instructions(decode_instructions(GOLD)) == GOLD
    )
    assert json.loads(GOLD)["instructions"][0] == {"id": "punctuation:no_comma"}
    assert describe_instructions(GOLD).startswith("punctuation:no_comma; keywords:existence (keywords ['rød', ")


@pytest.mark.parametrize("answer", ["42", "\\text{(C)}", '{"a": 1}', "[]", "{}"])
def test_holds_instructions_known_answer_is_false(answer: str) -> None:
    """Known answers, also JSON ones, are not instructions."""
    assert not holds_instructions(answer)
    with pytest.raises(ValueError, match="not a list of instructions"):
        decode_instructions(answer)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("punctuation:no_comma", "must be a list"),
        ([], "with at least one"),
        (["punctuation:no_comma"], r"instructions\[0\] must be an object"),
        ([{"id": "punctuation:none"}], "unknown instruction 'punctuation:none'; known: change_case:capital"),
        ([{"id": "punctuation:no_comma", "n": 1}], "takes no arguments; given: n"),
        ([{"id": "startend:end_checker"}], "takes end_phrase; given: none"),
        ([{"id": "startend:end_checker", "end_phrase": " "}], "end_phrase must be a text"),
        ([{"id": "detectable_format:number_bullet_lists", "num_bullets": -1}], "must be a non-negative integer"),
        ([{"id": "detectable_format:number_bullet_lists", "num_bullets": True}], "must be a non-negative integer"),
        ([{"id": "detectable_format:number_bullet_lists", "num_bullets": 1.5}], "must be a non-negative integer"),
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
def test_read_instructions_invalid_value_raises(value: object, message: str) -> None:
    """Unknown ids, and missing, unknown or mistyped arguments are rejected."""
    with pytest.raises(ValueError, match=message):
        read_instructions(value)


def test_check_instructions_loose_ignores_first_last_line() -> None:
    """The loose outcome ignores the first line, the last line and asterisks."""
    end = Instruction("startend:end_checker", {"end_phrase": "The end."})
    quoted, comma = Instruction("startend:quotation", {}), Instruction("punctuation:no_comma", {})
    few_words = Instruction("length_constraints:number_words", {"num_words": 3, "relation": "less than"})
    assert check_instructions("It is.\nThe end.", [end, quoted, comma]) == ["strict", "no", "strict"]
    assert check_instructions("It is.\nThe end.\nGood luck!", [end]) == ["loose"]
    assert check_instructions("Sure, here:\nIt is", [comma]) == ["loose"]
    assert check_instructions('Sure:\n"It is"\nDone.', [quoted]) == ["loose"]
    assert check_instructions('*"It is"*', [quoted]) == ["loose"]
    assert check_instructions('Sure:\n*"It is"*\nDone.', [quoted, few_words]) == ["loose", "loose"]
    assert check_instructions('a\n"b"\nc\nd', [quoted]) == ["no"]
    assert check_instructions(" \n ", [comma]) == ["no"]


def test_score_instructions_needs_all_strict() -> None:
    """A response is correct if the unmodified text follows every instruction."""
    read = read_instructions(ROWS)
    assert score_instructions('rød a"b c', read) == Grade.exact("correct", "strict, strict, strict")
    assert score_instructions('A,\nrød a"b c, b\nc,', read) == Grade.exact("wrong", "no, strict, strict")
    assert score_instructions('Well,\nrød a"b c', read) == Grade.exact("wrong", "loose, strict, strict")
    assert score_instructions("  ", read) == Grade.exact("no_answer", None)
    assert decode_outcomes("loose, strict, no", read) == ["loose", "strict", "no"]
    assert decode_outcomes(None, read) == ["no", "no", "no"]


@pytest.mark.parametrize(
    ("last_turn", "visible"),
    [
        ("It is green.\n", "It is green."),
        ("<reason>Hm, commas.</reason>\nIt is green.", "It is green."),
        ("Hm, commas.</reason>It is green.", "It is green."),
        ("Hm.</think>One.<think>Two.</think> Three.", "One. Three."),
        ("<think>Never ends, so no text is visible.", ""),
        ("<reason>a</reason><answer>\nIt is green.\n</answer>", "It is green."),
        ("Here: <answer>One</answer> or <answer>Two</answer> done", "Two"),
        ("<reason><answer>One</answer></reason>Two", "Two"),
        ("<answer>It is green.", "<answer>It is green."),
        ("a</reason></reason>b", "b"),
        ("", ""),
    ],
)
def test_visible_text_excludes_reasoning(last_turn: str, visible: str) -> None:
    """The visible text is the last turn without reasoning, or the content of its last answer block."""
    assert visible_text(last_turn) == visible


class NoJudge:
    """Replaces the judge where no call is expected."""

    async def run(self, code: str, stdin: str = "", **more: Any) -> Any:
        raise JudgeUnavailable("called")


async def test_grade_selects_the_verifier_of_the_problem() -> None:
    """Instructions use the visible text; known answers use the whole text, and the judge only if needed."""
    last_turn = '<reason>x, y</reason>rød a"b c'
    earlier = "I call, then: <answer>\\boxed{42}</answer>"
    assert await grade(f"{earlier}\n{last_turn}", last_turn, GOLD, judge=NoJudge()) == Grade.exact(
        "correct", "strict, strict, strict"
    )
    assert await grade(f"{earlier}\n{last_turn}", last_turn, "42", judge=NoJudge()) == Grade.exact("correct", "42")
    with pytest.raises(JudgeUnavailable):
        await grade(earlier, last_turn, "6*7", judge=NoJudge())
