"""The client of `rstar2 chat`: asks the endpoint of `rstar2 serve`, which it can start.

The agent loop runs on the server. `cli/chat_view.py` prints the streamed text.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import aiohttp

from rstar2_train.utils.supervisor import die_with_parent

LOG_LINES = 20
"""Last lines of a server's log that are shown if it does not start."""
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)
LINE_BYTES = 2**22
"""Buffer of a streamed line, which holds one event."""
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
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise ChatFailed(f"{self.url} is no URL of a server, such as http://127.0.0.1:8000") from error
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
def started(
    model: str | None,
    *,
    base: Path | None,
    jobs: Path,
    url: str,
    starting: AbstractContextManager[object],
) -> Iterator[str]:
    """Yield the URL of the server: `url`, or that of a server of `model` that runs inside the context.

    `starting`: entered while the server starts.

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
            with starting:
                line = server.stdout.readline()
            if not line:
                server.wait()
                log.seek(0)
                raise ChatFailed("".join(log.readlines()[-LOG_LINES:]).rstrip())
            yield json.loads(line)["url"]
        finally:
            server.terminate()
            server.wait()
