"""The conversation of `rstar2 chat` in the terminal: questions, and each answer while it streams.

The text of an answer is split (`serving/text.py`): reasoning is dim, a call is code in a frame, its output is another
frame, the answer is plain.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from rstar2_train.cli.common import INTERRUPTED
from rstar2_train.serving.chat import ChatClient, ChatFailed
from rstar2_train.serving.text import Kind, StreamSplitter, TextPiece
from rstar2_train.utils.text import printable

_STYLES: dict[Kind, str] = {"text": "", "reason": "dim", "answer": "bold"}


def converse(client: ChatClient, console: Console, *, prompt: str | None) -> int:
    """Ask one question, or chat until Ctrl-D; return the exit code. Raises ChatFailed without a server."""
    model = client.model()
    if prompt is not None:
        if not prompt.strip():
            raise ChatFailed("the question is empty")
        _, complete = answer(client, console, model, [{"role": "user", "content": prompt}])
        return 0 if complete else INTERRUPTED
    import readline  # noqa: F401 - gives input() a history and line editing

    console.print(
        f"{model} at {client.url}   (Ctrl-C stops an answer, Ctrl-D quits, /new starts a new conversation)", style="dim"
    )
    messages: list[dict[str, str]] = []
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            console.print()
            return 0
        except KeyboardInterrupt:
            console.print()
            continue
        if question == "/new":
            messages = []
        elif question:
            try:
                sent = [*messages, {"role": "user", "content": question}]
                text, _ = answer(client, console, model, sent)
                messages = [*sent, {"role": "assistant", "content": text}]
            except ChatFailed as error:
                console.print(Text(str(error), style="red"))


def answer(client: ChatClient, console: Console, model: str, messages: list[dict[str, str]]) -> tuple[str, bool]:
    """Print the answer while it streams. Returns its text, and whether it is complete (Ctrl-C stops it)."""
    printer = TranscriptPrinter(console)
    choices: list[dict[str, Any]] = []

    def on_choice(choice: dict[str, Any]) -> None:
        choices.append(choice)
        printer.feed(choice["delta"].get("content") or "")

    complete = True
    try:
        client.ask(model, messages, on_choice)
    except KeyboardInterrupt:
        complete = False
    finally:
        printer.end()
    last = choices[-1] if choices else {}
    if not complete:
        console.print("(stopped)", style="yellow")
    elif last.get("finish_reason") == "length":
        console.print(f"(truncated: {last.get('stop_reason', 'length')})", style="yellow")
    return "".join(choice["delta"].get("content") or "" for choice in choices), complete


class TranscriptPrinter:
    """Prints an answer to the terminal while it streams."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._splitter = StreamSplitter()
        self._block = ""
        """Text of a call or output that is not complete yet."""
        self._at_line_start = True

    def feed(self, text: str) -> None:
        """Print the next text."""
        for piece in self._splitter.feed(text):
            self._print(piece)

    def end(self) -> None:
        """Print the buffered rest."""
        for piece in self._splitter.end():
            self._print(piece)
        self._start_line()

    def _print(self, piece: TextPiece) -> None:
        if piece.kind in ("call", "output"):
            self._block += piece.text
            if piece.closes:
                self._start_line()
                self._console.print(call_panel(self._block) if piece.kind == "call" else output_panel(self._block))
                self._block = ""
            return
        text = piece.text.lstrip("\n") if self._at_line_start else piece.text
        if text:
            self._console.print(Text(printable(text), style=_STYLES[piece.kind]), end="", soft_wrap=True)
            self._at_line_start = text.endswith("\n")
        if piece.closes:
            self._start_line()

    def _start_line(self) -> None:
        if not self._at_line_start:
            self._console.print()
            self._at_line_start = True


def call_panel(body: str) -> Panel:
    """Return the frame of a call: its code, or its text if it has no code. `body`: the text between its tags."""
    title, code, stdin = "call", body.strip(), ""
    with contextlib.suppress(ValueError):
        call = json.loads(body)
        arguments = call["arguments"] if isinstance(call, dict) and isinstance(call.get("arguments"), dict) else {}
        if isinstance(arguments.get("code"), str):
            title, code, stdin = str(call.get("name", title)), arguments["code"], str(arguments.get("input", ""))
    return Panel(
        Syntax(printable(code), "python", background_color="default", word_wrap=True),
        title=Text(printable(title)),
        subtitle=Text(f"input: {stdin!r}") if stdin else None,
        title_align="left",
        border_style="cyan",
    )


def output_panel(body: str) -> Panel:
    """Return the frame of an output; an error is red."""
    text = body.strip("\n")
    style = "red" if text.startswith("error: ") else "green"
    return Panel(Text(printable(text)), title="output", title_align="left", border_style=style)
