"""`rstar2 chat`: a conversation in the terminal, through the endpoint of `rstar2 serve`.

The agent loop runs on the server. Here the streamed text is split (text.py) and shown: reasoning dim, each call as code
in a frame, its output in another frame, the answer plain.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from rstar2_train.serving.text import Kind, StreamSplitter, TextPiece
from rstar2_train.utils.supervisor import die_with_parent
from rstar2_train.utils.text import printable

LOG_LINES = 20
"""Last lines of a server's log that are shown if it does not start."""
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)
LINE_BYTES = 2**22
"""Buffer of a streamed line, which holds one event."""
_STYLES: dict[Kind, str] = {"text": "", "reason": "dim", "answer": "bold"}
_T = TypeVar("_T")


class ChatFailed(Exception):
    """The conversation cannot start or continue. The message is for the user."""


class ChatClient:
    """Client of the endpoint. Use as a context manager.

    Ctrl-C during a request raises KeyboardInterrupt after the request is cancelled.
    """

    def __init__(self, url: str, *, token: str | None, temperature: float | None, max_tokens: int | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        settings = {"temperature": temperature, "max_tokens": max_tokens}
        self._settings = {name: value for name, value in settings.items() if value is not None}
        self._runner = asyncio.Runner()

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._runner.close()

    def model(self) -> str:
        """Return the name of the served model. Raises ChatFailed."""

        async def request() -> str:
            async with self._response("GET", "/v1/models", None) as response:
                with self._checked_format():
                    return str((await response.json())["data"][0]["id"])

        return self._run(request())

    def ask(self, model: str, messages: list[dict[str, str]], on_choice: Callable[[dict[str, Any]], None]) -> None:
        """Stream an answer; `on_choice` gets the first choice of each event. Raises ChatFailed."""
        body = {"model": model, "messages": messages, "stream": True, **self._settings}

        async def request() -> None:
            async with self._response("POST", "/v1/chat/completions", body) as response:
                async for line in response.content:
                    data = line.decode().strip().removeprefix("data: ")
                    if data == "[DONE]":
                        return
                    if data:
                        with self._checked_format():
                            event = json.loads(data)
                            if "error" in event:
                                raise ChatFailed(event["error"]["message"])
                            choice = event["choices"][0]
                        on_choice(choice)
            raise ChatFailed(f"{self.url} stopped during its answer")

        self._run(request())

    def _run(self, request: Coroutine[Any, Any, _T]) -> _T:
        try:
            return self._runner.run(request)
        except aiohttp.InvalidURL as error:
            raise ChatFailed(f"{self.url} is not a valid URL") from error
        except aiohttp.ClientConnectorError as error:
            advice = "start one with `rstar2 serve MODEL`, or pass --model, or the --url of another one"
            raise ChatFailed(f"no server at {self.url}: {advice}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ChatFailed(f"{self.url}: {str(error) or type(error).__name__}") from error

    @contextlib.contextmanager
    def _checked_format(self) -> Iterator[None]:
        """Raise ChatFailed for a response that is not in OpenAI's format."""
        try:
            yield
        except (aiohttp.ContentTypeError, ValueError, LookupError, TypeError) as error:
            raise ChatFailed(f"{self.url} is not an OpenAI-compatible endpoint: {error!r}") from error

    @contextlib.asynccontextmanager
    async def _response(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response with status 200. Raises ChatFailed with the endpoint's message for any other."""
        async with (
            aiohttp.ClientSession(headers=self._headers, timeout=TIMEOUT, read_bufsize=LINE_BYTES) as session,
            session.request(method, self.url + path, json=body) as response,
        ):
            if response.status != 200:
                text = await response.text()
                try:
                    message = json.loads(text)["error"]["message"]
                except (ValueError, KeyError, TypeError):
                    message = text[:300]
                raise ChatFailed(f"{response.url.host} returned {response.status}: {message}")
            yield response


@contextlib.contextmanager
def started(model: str | None, *, base: Path | None, jobs: Path, token: str | None, url: str) -> Iterator[str]:
    """Yield the URL of the server: `url`, or that of a server of `model` that runs inside the context.

    Raises ChatFailed with the end of the log of a server that does not start.
    """
    if model is None:
        yield url
        return
    argv = [sys.executable, "-m", "rstar2_train.cli", "serve", model, "--state", str(jobs), "--port", "0"]
    argv += ["--base", str(base)] if base else []
    with tempfile.TemporaryFile("w+") as log:
        # In its own session, so that Ctrl-C stops an answer but not the server.
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
            with Console(stderr=True).status(f"Starting {model} ..."):
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
    """Ask one question, or chat until Ctrl-D; return the exit code. Raises ChatFailed without a server."""
    model = client.model()
    if prompt is not None:
        if not prompt.strip():
            raise ChatFailed("the question is empty")
        _, complete = answer(client, console, model, [{"role": "user", "content": prompt}])
        return 0 if complete else 130
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
