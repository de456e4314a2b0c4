"""An answer in the terminal, as it comes."""

import io

from rich.console import Console

from rstar2_train.serving.chat import TranscriptPrinter
from rstar2_train.serving.text import outputs_text
from rstar2_train.tools.parser import render_call


def shown(text: str, *, size: int = 5) -> list[str]:
    """Lines of the terminal, frames taken away."""
    page = io.StringIO()
    view = TranscriptPrinter(Console(file=page, width=60, highlight=False))
    for at in range(0, len(text), size):
        view.feed(text[at : at + size])
    view.end()
    return [line.strip("│ ").rstrip() for line in page.getvalue().splitlines()]


def test_calls_are_shown_as_code_and_outputs_in_order() -> None:
    call = render_call("import math\nprint(math.pi)", "some input")
    lines = shown(f"<reason>Let me see.</reason>\n{call}{outputs_text(['3.14'])}<answer>3.14</answer>")
    assert [line for line in lines if line and line[0] not in "╭╰"] == [
        "Let me see.",
        "import math",
        "print(math.pi)",
        "3.14",
        "3.14",
    ]
    assert any("execute_python_code_with_standard_io" in line for line in lines)
    assert any("input: 'some input'" in line for line in lines)


def test_a_call_that_is_no_json_is_shown_as_it_was_written() -> None:
    assert "{not json" in shown("<tool_call>\n{not json\n</tool_call>")


def test_an_answer_that_breaks_off_in_a_call_shows_it() -> None:
    assert any("half of it" in line for line in shown("so <tool_call>half of it"))


def test_escape_sequences_never_reach_the_terminal() -> None:
    for text in ("\x1b[2Jx", outputs_text(["\x1b[2Jx"]), render_call("\x1b[2Jx"), "<tool_call>\x1b[2Jx</tool_call>"):
        lines = shown(text)
        assert not any("\x1b" in line for line in lines)
        assert any("␛[2Jx" in line for line in lines)
