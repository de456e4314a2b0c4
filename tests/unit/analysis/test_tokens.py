"""The annotation of tokens: text, region, forking words, and the most uncertain tokens."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.analysis.tokens import annotate, forking_tokens, mark_highest, token_regions, token_texts
from rstar2_train.api.roles import ToolParser
from rstar2_train.tools.parser import write_calls
from tests.support.trajectory_job import CALL, ChatFormat, Rollout


def decode_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


@given(st.text())
def test_token_texts_join_to_decoded_text(text: str) -> None:
    """Each token is one byte. A character of several bytes is the text of the token that completes it."""
    data = text.encode(errors="ignore")
    texts = token_texts(list(data), decode_bytes)
    assert len(texts) == len(data)
    assert "".join(texts) == data.decode()


def test_token_texts_of_split_character() -> None:
    """A character belongs to the token that completes it."""
    assert token_texts(list("aé€".encode()), decode_bytes) == ["a", "", "é", "", "", "€"]
    assert token_texts(list("€".encode())[:2], decode_bytes) == ["", "\ufffd"]


def test_token_texts_of_invalid_bytes() -> None:
    """Invalid bytes do not delay the following text."""
    texts = token_texts([0xFF, 0xFE, *b"ab", 0xE2], decode_bytes)
    assert texts == ["", "", "\ufffd\ufffda", "b", "\ufffd"]
    assert len("".join(token_texts([0xFF] * 100, decode_bytes))) == 100


def by_letters(text: str, *, after_tool: bool = False) -> dict[str, str]:
    """Return the text of each region, with one token per letter."""
    texts: dict[str, str] = {}
    for letter, region in zip(text, token_regions(list(text), after_tool=after_tool), strict=True):
        texts[region] = texts.get(region, "") + letter
    return texts


def test_token_regions_of_call_and_surrounding_text() -> None:
    """A call is code. The text before it is reflection after a tool response, otherwise reasoning."""
    assert by_letters(f"so {CALL} end") == {"reasoning": "so  end", "code": CALL}
    assert by_letters(f"so {CALL} end", after_tool=True) == {"reflection": "so ", "code": CALL, "reasoning": " end"}


def test_token_regions_of_answer_ends_reflection() -> None:
    """The answer is a region, and ends the reflection."""
    text = "it fits <answer>1</answer> done"
    assert by_letters(text, after_tool=True) == {
        "reflection": "it fits ", "answer": "<answer>1</answer>", "reasoning": " done"
    }  # fmt: skip
    assert by_letters("<answer>cut off") == {"answer": "<answer>cut off"}


def test_token_regions_of_tags_within_code() -> None:
    """Tags within a program are code."""
    call = '<tool_call>{"name": "f", "arguments": {"code": "\'<answer>1</answer></tool_call>\'"}}</tool_call>'
    assert by_letters(call) == {"code": call}


@pytest.mark.parametrize("parser", get_args(ToolParser))
def test_token_regions_of_each_form_of_calls(parser: ToolParser) -> None:
    """The code of a call is no reasoning, in the form of each family."""
    call = write_calls([("run", {"code": "print(1)  # check"})], parser)
    texts = list(f"Wait.\n{call}\n")
    regions = token_regions(texts, after_tool=False, parser=parser)
    assert "".join(text for text, region in zip(texts, regions, strict=True) if region == "code").strip() == call
    assert regions[:6] == ["reasoning"] * 6


def test_token_regions_uses_first_character() -> None:
    """A token belongs to the region of its first character."""
    assert token_regions(["so <tool", "_call>{", "}"], after_tool=False) == ["reasoning", "code", "code"]


def marked(texts: list[str], regions: list[str] | None = None) -> list[str]:
    marks = forking_tokens(texts, regions or ["reasoning"] * len(texts))  # type: ignore[arg-type]
    return [text for text, is_forking in zip(texts, marks, strict=True) if is_forking]


def test_forking_tokens_matches_whole_words() -> None:
    """Forking words are matched as whole words, also over several tokens."""
    assert marked(["Wait", ",", " I", " must", " double", "-", "check", "."]) == ["Wait", " double", "-", "check"]
    assert marked(["But", " ", "before", " that", " I", " re", "evaluate"]) == ["But", "before", " re", "evaluate"]
    assert marked([" checker", " await", " thusly"]) == []


def test_forking_tokens_ignores_code_and_answers() -> None:
    """Words in code or answers are not forking words."""
    assert marked(["since", "since", "since"], ["code", "answer", "reflection"]) == []
    assert marked(["since ", "since ", "since"], ["code", "answer", "reflection"]) == ["since"]


def test_mark_highest_marks_top_fifth() -> None:
    """The top 20 % are marked, rounded up, but never a 0."""
    assert mark_highest([1.0, 5.0, 2.0, 3.0, 4.0]) == [False, True, False, False, False]
    assert mark_highest([3.0, 3.0, 3.0, 1.0, 1.0, 1.0]) == [True, True, False, False, False, False], (
        "rounded up, the earlier of equal values first"
    )
    assert mark_highest([0.0, 0.0]) == [False, False], "a certain token is never marked"
    assert mark_highest([]) == []


def test_annotate_returns_columns_of_equal_length(rollout: Rollout, chat_format: ChatFormat) -> None:
    """The turns of a trajectory have the text, the values and the regions of each token."""
    trajectory = rollout(thought="I check it")
    sampled = sum(len(segment.token_ids) for segment in trajectory.segments if segment.kind == "model")
    first, tool, last = annotate(trajectory, chat_format.decode, [float(index) for index in range(sampled)])
    assert [turn.kind for turn in (first, tool, last)] == ["model", "tool", "model"]
    for turn, segment in zip((first, tool, last), trajectory.segments, strict=True):
        assert "".join(turn.texts) == chat_format.decode(segment.token_ids)
    assert tool.surprisal == tool.entropy == tool.regions == []
    assert first.entropy + last.entropy == [float(index) for index in range(sampled)]
    assert (first.surprisal + last.surprisal)[:3] == pytest.approx([0.0, 0.1, 0.2])
    assert set(first.regions) == {"reasoning", "code"} and set(last.regions) == {"reflection", "answer", "reasoning"}
    assert any(last.forking) and not any(first.forking)
    assert first.weights == "rl-1-step-000000"
    assert annotate(trajectory, chat_format.decode)[0].entropy == []


def test_annotate_with_wrong_number_of_entropies_raises(rollout: Rollout, chat_format: ChatFormat) -> None:
    """Entropies of another trajectory are an error."""
    with pytest.raises(ValueError, match="2 entropies for"):
        annotate(rollout(), chat_format.decode, [1.0, 2.0])
