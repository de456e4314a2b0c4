"""The text form of an answer: outputs are inserted and split again, also while it streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.serving.text import StreamSplitter, TextPiece, outputs_text, split_turns
from rstar2_train.utils.text import printable
from tests.support.engine import FIRST_REPLY, FIRST_TURN, LAST_TURN

WHOLE = f"<reason>let me see</reason>\n{FIRST_TURN}{outputs_text(FIRST_REPLY)}so: {LAST_TURN}"
OUTPUT = st.text(alphabet="ab\n<>/ ").filter(lambda text: "</tool_response>" not in text)


def split(*texts: str) -> list[tuple[str, str]]:
    """Return kinds and texts, with consecutive pieces of a kind joined; empty ones are excluded."""
    splitter, joined, current = StreamSplitter(), [], ""
    pieces: list[TextPiece] = [piece for text in texts for piece in splitter.feed(text)] + list(splitter.end())
    for piece in pieces:
        current += piece.text
        if piece.closes:
            joined.append((piece.kind, current))
            current = ""
    return [(kind, text) for kind, text in joined if text]


@given(
    st.lists(st.tuples(st.text(alphabet="xy\n"), st.lists(OUTPUT, min_size=1, max_size=3)), max_size=4), st.text("z")
)
def test_split_turns_reverses_outputs_text(turns: list[tuple[str, list[str]]], last: str) -> None:
    """For any turns and outputs."""
    content = "".join(turn + outputs_text(outputs) for turn, outputs in turns) + last
    expected = []
    for turn, outputs in turns:
        expected.append({"role": "assistant", "content": turn})
        expected += [{"role": "tool", "content": output} for output in outputs]
    assert split_turns(content) == [*expected, {"role": "assistant", "content": last}]


def test_split_turns_unclosed_outputs_take_linear_time() -> None:
    """Blocks that are not closed are text."""
    block = outputs_text(["1"])
    open_ones = "\n<tool_response>\n" * 200_000  # in quadratic time: hours
    turn = {"role": "assistant", "content": "x"}
    assert split_turns(f"x{block}{open_ones}") == [
        turn,
        {"role": "tool", "content": "1"},
        turn | {"content": open_ones},
    ]
    assert split_turns(open_ones) == [turn | {"content": open_ones}]


def test_splitter_returns_kinds_in_order() -> None:
    """Reasoning, calls, outputs and the answer, without their tags."""
    kinds = split(WHOLE)
    assert [kind for kind, _ in kinds if kind != "text"] == ["reason", *["call"] * 3, *["output"] * 3, "answer"]
    assert [text.strip("\n") for kind, text in kinds if kind == "output"] == FIRST_REPLY
    assert kinds[0] == ("reason", "let me see") and kinds[-1] == ("answer", "\\boxed{42}")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_splitter_is_independent_of_piece_size(size: int) -> None:
    """A tag may arrive in parts."""
    parts = [WHOLE[at : at + size] for at in range(0, len(WHOLE), size)]
    assert split(*parts) == split(WHOLE)


def test_splitter_buffers_only_a_partial_tag() -> None:
    """Other text is returned immediately."""
    splitter = StreamSplitter()
    assert [piece.text for piece in splitter.feed("a < b")] == ["a < b"]
    assert [piece.text for piece in splitter.feed(" and <tool_")] == [" and "]
    assert [piece.text for piece in splitter.feed("s")] == ["<tool_s"]


def test_splitter_returns_to_reasoning_after_a_call() -> None:
    """A call may be inside the reasoning."""
    assert split("<reason>a<tool_call>b</tool_call>c</reason>d") == [
        ("reason", "a"),
        ("call", "b"),
        ("reason", "c"),
        ("text", "d"),
    ]


def test_splitter_ignores_tags_in_an_output() -> None:
    """Tags that a program printed are text."""
    assert split("<tool_response>\n<answer>7</answer>\n</tool_response>") == [("output", "\n<answer>7</answer>\n")]


def test_printable_escapes_control_characters() -> None:
    """Line breaks and tabs are kept."""
    assert printable("a\n\tb\x1b[2J\r\x9b") == "a\n\tb␛[2J␍\ufffd"
