"""Extraction of the answer: cases that lenient graders accept by mistake, and properties of tags and braces."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.rewards.extract import count_answers, extract_answer, last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<answer>\boxed{5}</answer>", "5"),
        (r"so <answer>it is \boxed{ 5 }.</answer> bye", "5"),
        (r"<answer>\boxed{4} no, \boxed{5}</answer>", "5"),
        (r"<answer>\boxed{5} no, \boxed{4}</answer>", "4"),
        (r"<answer>\boxed{4}</answer><answer>\boxed{5}</answer>", "5"),
        (r"<answer>\boxed{5}</answer><answer>3</answer>", None),
        (r"\boxed{5} <answer>3</answer>", None),
        ("<answer>5</answer>", None),
        ("so the value is 5", None),
        ("let me compute 5 plus", None),
        (r"<answer>\boxed{5}", None),
        (r"\boxed{5}</answer>", None),
        (r"<answer>\boxed{}</answer>", None),
        (r"<answer>\boxed{5</answer>", None),
        (r"<answer>\boxed{5} \boxed{6</answer>", "5"),
        (r"<answer>\boxed{\frac{1}{2}}</answer>", r"\frac{1}{2}"),
        (r"<answer>\boxed{\{1, 2\}}</answer>", r"\{1, 2\}"),
        (r"<answer>\boxed {7}</answer>", "7"),
        (r"<answer>\boxed{\boxed{7}}</answer>", "7"),
        (r"<answer>a<answer>\boxed{7}</answer>", "7"),
        (r"<answer>\boxed{1}</answer> then <answer>\boxed{2}", "1"),
        (r"<ANSWER>\boxed{1}</ANSWER>", None),
        ("", None),
    ],
)
def test_extract_answer_is_the_last_box_of_the_last_block(text: str, answer: str | None) -> None:
    """Only a box inside a complete answer block is an answer."""
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "blocks", "balanced"),
    [
        ("", 0, True),
        ("no tags", 0, True),
        ("<answer>1</answer>", 1, True),
        ("<answer>1</answer> <answer>2</answer>", 2, True),
        ("<answer>1", 0, False),
        ("1</answer>", 0, False),
        ("<answer><answer>1</answer>", 1, False),
        ("<answer>1</answer></answer>", 1, False),
        ("</answer><answer>", 0, False),
        ("<answer>1</answer><answer>", 1, False),
    ],
)
def test_count_answers_counts_blocks_and_checks_tags(text: str, blocks: int, balanced: bool) -> None:
    """Blocks are complete pairs of tags; unclosed or extra tags are unbalanced."""
    assert count_answers(text) == (blocks, balanced)


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "x", r"\boxed{1}"]), max_size=12))
def test_count_answers_balanced_iff_every_tag_is_paired(parts: list[str]) -> None:
    """Tags are balanced exactly if every tag belongs to a block."""
    text = "".join(parts)
    blocks, balanced = count_answers(text)
    if balanced:
        assert blocks == text.count("<answer>") == text.count("</answer>")
    else:
        assert text.count("<answer>") + text.count("</answer>") > 2 * blocks


@given(st.recursive(st.text("ab1 ", max_size=4), lambda inner: inner.map(lambda text: "{" + text + "}"), max_leaves=8))
def test_last_boxed_returns_balanced_content(content: str) -> None:
    """Content with balanced braces is returned completely."""
    assert last_boxed(r"before \boxed{" + content + "} after }") == content.strip()


@given(st.lists(st.sampled_from([r"\boxed{", r"\boxed {", "{", "}", r"\{", r"\}", "\\\\", "\\", "1"]), max_size=14))
def test_last_boxed_is_the_last_balanced_box(parts: list[str]) -> None:
    """The result equals a search with a counter of braces."""
    text, expected = "".join(parts), None
    for match in re.finditer(r"\\boxed\s*\{", text):
        depth, escaped = 1, False
        for end in range(match.end(), len(text)):
            if escaped or text[end] == "\\":
                escaped = not escaped
                continue
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                expected = text[match.end() : end].strip()
                break
    assert last_boxed(text) == expected


def test_last_boxed_is_linear_in_unclosed_boxes() -> None:
    """Quadratic time would take hours for this text."""
    assert last_boxed(r"\boxed{7}" + r"\boxed{" * 200_000) == "7"


@given(st.text(r"\boxed{}<answer>/ 1", max_size=60))
def test_extract_answer_accepts_any_text(text: str) -> None:
    """Any text is handled, and an answer is a part of it."""
    answer = extract_answer(text)
    assert answer is None or answer in text
