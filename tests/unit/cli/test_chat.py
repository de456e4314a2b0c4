"""A streamed answer in the terminal, and errors of the endpoint."""

import http.server
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.console import Console

from rstar2_train.cli.chat_view import TranscriptPrinter, converse
from rstar2_train.serving.chat import ChatClient, ChatFailed
from rstar2_train.serving.text import outputs_text
from tests.support.model_turns import render_call


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


@contextmanager
def endpoint(*lines: str, hang: bool = False) -> Iterator[str]:
    """Run an endpoint that serves the model `m` and answers with these lines; it never ends its answer if `hang`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            for line in lines:
                self.wfile.write(f"data: {line}\n\n".encode())
            if hang:
                os.kill(os.getpid(), signal.SIGINT)
                released.wait()

        def log_message(self, *_: object) -> None:
            return

    released = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        released.set()
        server.shutdown()
        server.server_close()


def chunk(text: str, finish_reason: str | None = None) -> str:
    return json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": finish_reason}]})


def chat(url: str) -> tuple[int, str]:
    """Ask one question; return the exit code and the printed text."""
    page = io.StringIO()
    with ChatClient(url, token=None, temperature=None, max_tokens=None) as client:
        code = converse(client, Console(file=page, width=80, highlight=False), prompt="question")
    return code, page.getvalue()


def test_converse_prints_a_complete_answer() -> None:
    """A truncated answer is marked."""
    with endpoint(chunk("4"), chunk("2"), "[DONE]") as url:
        assert chat(url) == (0, "42\n")
    with endpoint(chunk("4", "length"), "[DONE]") as url:
        assert chat(url) == (0, "4\n(truncated: length)\n")


def test_converse_ctrl_c_stops_the_answer() -> None:
    """The printed part stays, and the exit code is that of SIGINT."""
    with endpoint(chunk("42 is"), hang=True) as url:
        code, text = chat(url)
    assert code == 130 and text.endswith("(stopped)\n")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([chunk("4")], "stopped during its answer"),
        (["{"], "is not an OpenAI-compatible endpoint"),
        ([json.dumps({"error": {"message": "the engine failed"}})], "the engine failed"),
    ],
)
def test_converse_failed_answer_raises(lines: list[str], message: str) -> None:
    """The message has the URL, or it is that of the server."""
    with endpoint(*lines) as url, pytest.raises(ChatFailed, match=message):
        chat(url)
