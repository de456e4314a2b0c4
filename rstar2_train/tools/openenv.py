"""One connection to an OpenEnv server: reset, step and state over its WebSocket. The wire, nothing of the task.

    environment (schema, when a stage starts) --------------------------.
    rollout.environment_episode (one connection per rollout) --> Connection --> server

One connection is one session with one environment object, which ends with the connection. The server is an untrusted
peer: every doubt is `ServerLost`. An action is checked by the environment's schema before it is sent, so an error
message is a fault of the environment, unless the manifest names its code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import websockets

from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.tools.message_limit import MessageLimit

MAX_MESSAGE_BYTES = 1 << 20
"""Largest message that a server may send."""
CLOSE_SECONDS = 2.0
"""Time of a server to end the session. If the client ends the connection first, OpenEnv logs an error."""
FULL = "CAPACITY_REACHED"
"""Code of the error message of a server whose episodes are all in use."""


class ServerFull(Exception):
    """The server accepts no further episode now. A slot may stay held after its client has left."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The answer to a reset or a step."""

    fields: dict[str, Any]
    reward: float | None
    done: bool
    error: str = ""
    """Message of an error that counts as a tool error of the model; then the other fields are empty."""


class Connection:
    """One episode of a server. Use as `async with`; entering it raises ServerLost or ServerFull."""

    def __init__(self, url: str, *, seconds: float, tool_errors: Collection[str] = ()) -> None:
        """`url`: base URL of the server; `seconds`: deadline of each answer; `tool_errors`: codes of tool errors."""
        self._url = url.rstrip("/").replace("http", "ws", 1) + "/ws"
        self._seconds = seconds
        self._tool_errors = frozenset(tool_errors)
        self.done = False
        self._has_state = True
        self._episode = ""
        self._steps = 0

    async def __aenter__(self) -> Self:
        try:
            self._socket = await websockets.connect(
                self._url,
                proxy=None,
                max_size=MAX_MESSAGE_BYTES,
                open_timeout=self._seconds,
                close_timeout=CLOSE_SECONDS,
            )
        except (OSError, websockets.WebSocketException, TimeoutError, ValueError) as error:
            raise ServerLost(f"{self._url}: no connection: {type(error).__name__}: {error}"[:400]) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with contextlib.suppress(OSError, TimeoutError, websockets.WebSocketException):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._socket.send('{"type": "close"}')
                    await (
                        self._socket.recv()
                    )  # the end of the connection, or the error of a server without this message
            await self._socket.close()
        else:
            self._socket.transport.abort()

    async def reset(self, *, seed: int, episode: str, arguments: dict[str, Any]) -> Observation:
        """Start the episode. `arguments`: further arguments of the environment's reset."""
        answer = await self._ask("reset", {"seed": seed, "episode_id": episode} | arguments)
        observation = self._observation("reset", answer)
        await self._check_state(episode=episode)
        return observation

    async def step(self, action: dict[str, Any]) -> Observation:
        """Take an action. Must not be called after the episode is done: servers answer as if nothing had happened."""
        assert not self.done
        observation = self._observation("step", await self._ask("step", action))
        if not self.done:
            await self._check_state()
        return observation

    async def _ask(self, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a message and return its answer. Raises ServerLost."""
        message = json.dumps({"type": kind} | ({} if data is None else {"data": data}), allow_nan=False)
        try:
            await self._expect_silence()
            async with asyncio.timeout(self._seconds):
                with contextlib.suppress(websockets.ConnectionClosed):  # its reason may be in the queue of messages
                    await self._socket.send(message)
                answer = _read_message(await self._socket.recv(decode=False))
        except TimeoutError as error:
            raise self._lost(kind, f"no answer within {self._seconds:g} s") from error
        except (OSError, ValueError, RecursionError, websockets.WebSocketException) as error:
            raise self._lost(kind, f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise self._lost(kind, f"not an answer of OpenEnv: {str(answer)[:200]}")
        return answer

    async def _expect_silence(self) -> None:
        """Raise ValueError for an unrequested message: the next answer would belong to another action."""
        try:
            async with asyncio.timeout(0):
                message = await self._socket.recv()
        except TimeoutError:
            return
        except websockets.ConnectionClosed:
            return  # reported by the request
        if isinstance(message, str) and FULL in message:
            raise ServerFull(self._url)
        raise ValueError(f"the server sent a message without a request: {message[:100]!r}")

    def _observation(self, kind: str, answer: dict[str, Any]) -> Observation:
        data = answer["data"]
        if answer.get("type") == "error":
            code, message = str(data.get("code")), str(data.get("message"))
            if code == FULL:
                raise ServerFull(self._url)
            if kind == "step" and code in self._tool_errors:
                return Observation({}, None, done=False, error=message or code)
            raise self._lost(kind, f"{code}: {message}")
        fields, reward, done = data.get("observation"), data.get("reward"), data.get("done")
        if answer.get("type") != "observation" or not isinstance(fields, dict) or not isinstance(done, bool):
            raise self._lost(kind, f"not an observation: {str(answer)[:200]}")
        if isinstance(reward, bool):
            reward = float(reward)
        if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
            raise self._lost(kind, f"the reward is {reward!r}")
        self.done = done
        return Observation(fields, None if reward is None else float(reward), done)

    async def _check_state(self, *, episode: str = "") -> None:
        """Raise ServerLost if the environment was reset since the last check. `episode`: the id of a new episode.

        An environment without a useful state is not checked.
        """
        if not self._has_state:
            return
        answer = await self._ask("state")
        state, steps = answer["data"], answer["data"].get("step_count")
        if episode:
            self._has_state = answer.get("type") == "state" and state.get("episode_id") == episode
            self._episode = episode
        elif answer.get("type") != "state" or state.get("episode_id") != self._episode:
            raise self._lost("state", "another episode: the environment was reset in the middle of this one")
        if not isinstance(steps, int):
            return
        if steps < self._steps:
            raise self._lost("state", f"{steps} steps after {self._steps}: the environment was reset in mid-episode")
        self._steps = steps

    def _lost(self, kind: str, event: str) -> ServerLost:
        return ServerLost(f"{self._url}: {kind}: {event}"[:400])


def _read_message(message: bytes) -> Any:
    """Return the value of a message. Raises ValueError, also above a limit, and RecursionError."""
    MessageLimit().count(message)
    return json.loads(message)
