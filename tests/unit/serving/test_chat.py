"""A streamed answer in the terminal, and errors of the endpoint."""

import io

from rich.console import Console

from rstar2_train.serving.chat import TranscriptPrinter
from rstar2_train.serving.text import outputs_text
from rstar2_train.tools.parser import render_call


def printed(text: str, *, size: int = 5) -> list[str]:
    """Return the printed lines without frames."""
    page = io.StringIO()
    printer = TranscriptPrinter(Console(file=page, width=60, highlight=False))
    for at in range(0, len(text), size):
        printer.feed(text[at : at + size])
    printer.end()
    return [line.strip("│ ").rstrip() for line in page.getvalue().splitlines()]


def test_printer_shows_code_and_outputs_in_order() -> None:
    """A call is shown as code, with its standard input."""
    call = render_call("import math\nprint(math.pi)", "some input")
    lines = printed(f"<reason>Let me see.</reason>\n{call}{outputs_text(['3.14'])}<answer>3.14</answer>")
    assert [line for line in lines if line and line[0] not in "╭╰"] == [
        "Let me see.",
        "import math",
        "print(math.pi)",
        "3.14",
        "3.14",
    ]
    assert any("execute_python_code_with_standard_io" in line for line in lines)
    assert any("input: 'some input'" in line for line in lines)


def test_printer_shows_invalid_json_verbatim() -> None:
    """A call that is not valid JSON is shown as the model wrote it."""
    assert "{not json" in printed("<tool_call>\n{not json\n</tool_call>")


def test_printer_shows_an_incomplete_call() -> None:
    """An answer that ends inside a call is shown to its end."""
    assert any("half of it" in line for line in printed("so <tool_call>half of it"))


def test_printer_escapes_control_characters() -> None:
    """Neither text, calls nor outputs can control the terminal."""
    for text in ("\x1b[2Jx", outputs_text(["\x1b[2Jx"]), render_call("\x1b[2Jx"), "<tool_call>\x1b[2Jx</tool_call>"):
        lines = printed(text)
        assert not any("\x1b" in line for line in lines)
        assert any("␛[2Jx" in line for line in lines)
