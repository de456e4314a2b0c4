"""What each token is: its text, the part of a trajectory it stands in, and whether it is one of the uncertain ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.analysis.tokens import annotate, forking, highest, pieces, regions

from .conftest import CALL, ChatFormat, Rollout


def decode_bytes(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


@given(st.text())
def test_the_texts_of_tokens_join_to_the_whole(text: str) -> None:
    """Each byte a token: characters of several bytes are given to the token that completes them."""
    data = text.encode(errors="ignore")
    found = pieces(list(data), decode_bytes)
    assert len(found) == len(data)
    assert "".join(found) == data.decode()


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    assert pieces(list("aé€".encode()), decode_bytes) == ["a", "", "é", "", "", "€"]
    assert pieces(list("€".encode())[:2], decode_bytes) == ["", "\ufffd"]


def test_bytes_that_are_no_text_do_not_hold_up_the_rest() -> None:
    found = pieces([0xFF, 0xFE, *b"ab", 0xE2], decode_bytes)
    assert found == ["", "", "\ufffd\ufffda", "b", "\ufffd"]
    assert len("".join(pieces([0xFF] * 100, decode_bytes))) == 100


def by_letters(text: str, *, after_tool: bool = False) -> dict[str, str]:
    """The text of each region, a letter a token."""
    found: dict[str, str] = {}
    for letter, region in zip(text, regions(list(text), after_tool=after_tool), strict=True):
        found[region] = found.get(region, "") + letter
    return found


def test_a_call_is_code_and_what_stands_before_it_depends_on_the_turn() -> None:
    assert by_letters(f"so {CALL} end") == {"reasoning": "so  end", "code": CALL}
    assert by_letters(f"so {CALL} end", after_tool=True) == {"reflection": "so ", "code": CALL, "reasoning": " end"}


def test_the_answer_is_told_apart_and_ends_the_reflection() -> None:
    text = "it fits <answer>1</answer> done"
    assert by_letters(text, after_tool=True) == {
        "reflection": "it fits ", "answer": "<answer>1</answer>", "reasoning": " done"
    }  # fmt: skip
    assert by_letters("<answer>cut off") == {"answer": "<answer>cut off"}


def test_tags_in_a_program_are_code() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"code": "\'<answer>1</answer></tool_call>\'"}}</tool_call>'
    assert by_letters(call) == {"code": call}


def test_a_token_that_reaches_into_a_call_belongs_where_it_begins() -> None:
    assert regions(["so <tool", "_call>{", "}"], after_tool=False) == ["reasoning", "code", "code"]


def marked(words: list[str], where: list[str] | None = None) -> list[str]:
    found = forking(words, where or ["reasoning"] * len(words))  # type: ignore[arg-type]
    return [word for word, forks in zip(words, found, strict=True) if forks]


def test_forking_words_are_found_whole_and_over_several_tokens() -> None:
    assert marked(["Wait", ",", " I", " must", " double", "-", "check", "."]) == ["Wait", " double", "-", "check"]
    assert marked(["But", " ", "before", " that", " I", " re", "evaluate"]) == ["But", "before", " re", "evaluate"]
    assert marked([" checker", " await", " thusly"]) == []


def test_the_same_words_in_code_or_answer_do_not_fork() -> None:
    assert marked(["since", "since", "since"], ["code", "answer", "reflection"]) == []
    assert marked(["since ", "since ", "since"], ["code", "answer", "reflection"]) == ["since"]


def test_the_top_fifth_is_marked() -> None:
    assert highest([1.0, 5.0, 2.0, 3.0, 4.0]) == [False, True, False, False, False]
    assert highest([3.0, 3.0, 3.0, 1.0, 1.0, 1.0]) == [True, True, False, False, False, False], (
        "rounded up, earlier first"
    )
    assert highest([0.0, 0.0]) == [False, False], "a token that was certain is not among the uncertain"
    assert highest([]) == []


def test_a_trajectory_token_by_token(rollout: Rollout, chat_format: ChatFormat) -> None:
    trajectory = rollout(thought="I check it")
    sampled = sum(len(one.token_ids) for one in trajectory.segments if one.kind == "model")
    first, tool, last = annotate(trajectory, chat_format.decode, [float(at) for at in range(sampled)])
    assert [turn.kind for turn in (first, tool, last)] == ["model", "tool", "model"]
    for turn, segment in zip((first, tool, last), trajectory.segments, strict=True):
        assert "".join(turn.pieces) == chat_format.decode(segment.token_ids)
    assert tool.surprisal == tool.entropy == tool.regions == []
    assert first.entropy + last.entropy == [float(at) for at in range(sampled)]
    assert (first.surprisal + last.surprisal)[:3] == pytest.approx([0.0, 0.1, 0.2])
    assert set(first.regions) == {"reasoning", "code"} and set(last.regions) == {"reflection", "answer", "reasoning"}
    assert any(last.forking) and not any(first.forking)
    assert first.weights == "rl-1-step-000000"
    assert annotate(trajectory, chat_format.decode)[0].entropy == []


def test_entropies_of_another_trajectory_are_refused(rollout: Rollout, chat_format: ChatFormat) -> None:
    with pytest.raises(ValueError, match="2 entropies for"):
        annotate(rollout(), chat_format.decode, [1.0, 2.0])
