"""`rstar2 chat`: a conversation in the terminal, through the endpoint of `rstar2 serve`.

The loop runs on the server; here the text is taken apart as it comes (text.py) and shown: reasoning dim, each call as
code in a frame, its output in another, the answer plain.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from rstar2_train.serving.text import Kind, StreamSplitter, TextPiece, printable
from rstar2_train.utils.supervisor import die_with_parent

LOG_LINES = 20
"""Of the end of a server's log that are shown when it does not start."""
_STYLES: dict[Kind, str] = {"text": "", "reason": "dim", "answer": "bold"}


class ChatFailed(Exception):
    """Why there is no conversation; for a person to read."""


class ChatClient:
    """Asks the endpoint. Use as a context manager."""

    def __init__(self, url: str, *, token: str | None, temperature: float | None, max_tokens: int | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(None, connect=10),
            trust_env=False,
        )
        settings = {"temperature": temperature, "max_tokens": max_tokens}
        self._settings = {name: value for name, value in settings.items() if value is not None}

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def model(self) -> str:
        """The model that is served. Raises ChatFailed."""
        with self._failures():
            answer = self._http.get("/v1/models")
            _check(answer)
            return str(answer.json()["data"][0]["id"])

    def ask(self, model: str, messages: list[dict[str, str]]) -> Generator[dict[str, Any]]:
        """The first choice of each event of the answer; leaving it stops the answer. Raises ChatFailed."""
        body = {"model": model, "messages": messages, "stream": True, **self._settings}
        with self._failures(), self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
            _check(answer)
            for line in answer.iter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    return
                if data:
                    event = json.loads(data)
                    if "error" in event:
                        raise ChatFailed(event["error"]["message"])
                    yield event["choices"][0]
        raise ChatFailed(f"{self.url} broke its answer off")

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            hint = "start one with `rstar2 serve MODEL`, or give --model, or --url of another"
            raise ChatFailed(f"no server at {self.url}: {hint}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ChatFailed(f"{self.url}: {error or type(error).__name__}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ChatFailed(f"{self.url} does not answer as an OpenAI endpoint does: {error!r}") from error


def _check(answer: httpx.Response) -> None:
    """Raises ChatFailed with the endpoint's own words unless it answers well."""
    if answer.status_code == 200:
        return
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:300]
    raise ChatFailed(f"{answer.url.host} answers {answer.status_code}: {message}")


@contextlib.contextmanager
def started(model: str | None, *, jobs: Path, token: str | None, url: str) -> Iterator[str]:
    """The URL to talk to: `url`, or with a model that of a server that lives as long as this. Raises ChatFailed."""
    if model is None:
        yield url
        return
    argv = [sys.executable, "-m", "rstar2_train.cli", "serve", model, "--state", str(jobs), "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        # In a session of its own: Ctrl-C stops an answer, not the server.
        server = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            assert server.stdout is not None
            with Console(stderr=True).status(f"starting {model} ..."):
                line = server.stdout.readline()
            if not line:
                server.wait()
                log.seek(0)
                raise ChatFailed("".join(log.readlines()[-LOG_LINES:]).rstrip())
            yield json.loads(line)["url"]
        finally:
            server.terminate()
            server.wait()


def converse(client: ChatClient, console: Console, *, prompt: str | None) -> int:
    """Ask one question, or talk until Ctrl-D; returns the exit code. Raises ChatFailed when nobody answers at all."""
    model = client.model()
    if prompt is not None:
        if not prompt.strip():
            raise ChatFailed("the question is empty")
        _, whole = answer(client, console, model, [{"role": "user", "content": prompt}])
        return 0 if whole else 130
    import readline  # noqa: F401 - gives input() a history and keys

    console.print(f"{model} at {client.url}   (Ctrl-C stops an answer, Ctrl-D ends, /new begins anew)", style="dim")
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
                asked = [*messages, {"role": "user", "content": question}]
                text, _ = answer(client, console, model, asked)
                messages = [*asked, {"role": "assistant", "content": text}]
            except ChatFailed as error:
                console.print(Text(str(error), style="red"))


def answer(client: ChatClient, console: Console, model: str, messages: list[dict[str, str]]) -> tuple[str, bool]:
    """Ask, and show the answer as it comes; its text, and whether it came to its end (Ctrl-C stops it)."""
    shown, text, choice = TranscriptPrinter(console), "", {}
    try:
        with contextlib.closing(client.ask(model, messages)) as choices:
            for choice in choices:
                piece = choice["delta"].get("content") or ""
                text += piece
                shown.feed(piece)
    except KeyboardInterrupt:
        shown.end()
        console.print("(stopped)", style="yellow")
        return text, False
    except ChatFailed:
        shown.end()
        raise
    shown.end()
    if choice.get("finish_reason") == "length":
        console.print(f"(cut off: {choice.get('stop_reason', 'length')})", style="yellow")
    return text, True


class TranscriptPrinter:
    """An answer in the terminal, as it comes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._splitter = StreamSplitter()
        self._block = ""
        """Of a call or an output that is not closed yet."""
        self._at_start = True
        """Whether the next character is the first of a line."""

    def feed(self, text: str) -> None:
        """Show what comes next."""
        for piece in self._splitter.feed(text):
            self._show(piece)

    def end(self) -> None:
        """Show what was waited with."""
        for piece in self._splitter.end():
            self._show(piece)
        self._start_line()

    def _show(self, piece: TextPiece) -> None:
        if piece.kind in ("call", "output"):
            self._block += piece.text
            if piece.closes:
                self._start_line()
                self._console.print(call_panel(self._block) if piece.kind == "call" else output_panel(self._block))
                self._block = ""
            return
        text = piece.text.lstrip("\n") if self._at_start else piece.text
        if text:
            self._console.print(Text(printable(text), style=_STYLES[piece.kind]), end="", soft_wrap=True)
            self._at_start = text.endswith("\n")
        if piece.closes:
            self._start_line()

    def _start_line(self) -> None:
        if not self._at_start:
            self._console.print()
            self._at_start = True


def call_panel(body: str) -> Panel:
    """A call, from what stood between its tags: its code where it has some, else as it was written."""
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
    """What a call printed; an error in red."""
    text = body.strip("\n")
    style = "red" if text.startswith("error: ") else "green"
    return Panel(Text(printable(text)), title="output", title_align="left", border_style=style)
