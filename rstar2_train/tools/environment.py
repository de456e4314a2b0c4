"""The tools of an OpenEnv environment, and the text of its observations.

    toolset --> read_environment (when a stage starts) --> episode_servers, openenv
    rollout.environment_episode --> EnvironmentTools (actions, observations)

An environment whose actions call tools (OpenEnv's MCP environments) has these tools. Any other has one tool, `step`,
whose arguments are the action.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2_train.api.tasks import EnvironmentSpec
from rstar2_train.tools.episode_servers import EpisodeServers
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.tools.openenv import MAX_MESSAGE_BYTES, Observation, ServerFull
from rstar2_train.tools.remote_schema import remote_signature
from rstar2_train.tools.sandbox_program import SourceError

log = logging.getLogger(__name__)

STEP = "step"
"""Name of the only tool of an environment without tools of its own."""
READY_SECONDS = 300.0
"""Time until a server of the environment must answer. The imports of OpenEnv alone take up to a minute."""
RETRY_SECONDS = 1.0
_HIDDEN = frozenset({"metadata", "reward", "done"})
"""Fields of an observation that the model does not read."""


@dataclass(frozen=True)
class EnvironmentTools:
    """An environment as the model sees it."""

    spec: EnvironmentSpec
    servers: EpisodeServers
    signatures: tuple[dict[str, Any], ...]
    calls_tools: bool
    """Whether an action names a tool and its arguments."""

    def action(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the action of a call."""
        if not self.calls_tools:
            return arguments
        return {"type": "call_tool", "tool_name": tool, "arguments": arguments}

    def text(self, observation: Observation) -> tuple[str, bool]:
        """Return what the model reads of an observation, and whether it is a tool error."""
        if observation.error:
            return observation.error, True
        fields = {key: value for key, value in observation.fields.items() if key not in _HIDDEN and value is not None}
        if self.calls_tools and fields.get("error"):
            error = fields["error"]
            return str(error.get("message", error)) if isinstance(error, Mapping) else str(error), True
        name = self.spec.observation or ("result" if self.calls_tools else None)
        if name is not None:
            return _plain(fields.get(name)), False
        return _plain(next(iter(fields.values())) if len(fields) == 1 else fields or None), False


async def read_environment(spec: EnvironmentSpec, services: Sequence[str]) -> EnvironmentTools:
    """Return the tools of a running environment. Waits until a server answers.

    Raises ServerLost if none does, SourceError for an environment whose actions cannot be described.
    """
    servers = EpisodeServers(spec, services)
    schema = await _get(servers, "/schema")
    action = schema.get("action")
    if not isinstance(action, dict):
        raise SourceError(f"environment {spec.name}: its /schema has no schema of an action")
    properties = action.get("properties") or {}
    if "tool_name" in properties and "arguments" in properties:
        return EnvironmentTools(spec, servers, tuple(await _list_tools(servers)), calls_tools=True)
    parameters = {**action, "properties": {key: value for key, value in properties.items() if key != "metadata"}}
    parameters.pop("description", None)
    description = str(action.get("description") or "Takes one step in the environment.")
    signature = remote_signature(STEP, description, {"type": "object", **parameters})
    return EnvironmentTools(spec, servers, (signature,), calls_tools=False)


async def _list_tools(servers: EpisodeServers) -> list[dict[str, Any]]:
    try:
        async with servers.connect() as connection:
            await connection.reset(seed=0, episode="list-tools", arguments={})
            tools = (await connection.step({"type": "list_tools"})).fields.get("tools")
    except ServerFull as error:
        raise ServerLost(f"environment {servers.spec.name}: {error} has no free episode") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "name" in tool for tool in tools):
        raise SourceError(f"environment {servers.spec.name}: it does not list its tools")
    return [
        remote_signature(str(tool["name"]), str(tool.get("description") or ""), tool.get("input_schema") or {})
        for tool in tools
    ]


async def _get(servers: EpisodeServers, path: str) -> dict[str, Any]:
    """Return a JSON object of a server. Raises ServerLost."""
    import httpx2

    from rstar2_train.tools.bounded_http import bounded_client

    deadline, failure, waiting = time.monotonic() + READY_SECONDS, "it has no server", False
    async with bounded_client({}, max_bytes=MAX_MESSAGE_BYTES) as http:
        while True:
            for url in await servers.urls():
                try:
                    async with asyncio.timeout(servers.spec.step_timeout_seconds):
                        answer = (await http.get(url.rstrip("/") + path)).raise_for_status().json()
                    if isinstance(answer, dict):
                        return answer
                    failure = f"{url}{path} is not a JSON object"
                except (httpx2.HTTPError, ValueError, TimeoutError, RecursionError) as error:
                    failure = f"{url}{path}: {type(error).__name__}: {error}"[:300]
            if time.monotonic() > deadline:
                raise ServerLost(f"environment {servers.spec.name}: {failure}")
            if not waiting:
                log.warning("environment %s: waiting for a server: %s", servers.spec.name, failure)
                waiting = True
            await asyncio.sleep(RETRY_SECONDS)


def _plain(value: Any) -> str:
    """Return a value as text: messages and the parts of a content by their text, other values as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("content"), list):
        return _plain(value["content"])
    if isinstance(value, list) and value and all(_part(entry) is not None for entry in value):
        return "\n".join(str(_part(entry)) for entry in value)
    return json.dumps(value, ensure_ascii=False)


def _part(entry: Any) -> str | None:
    """Return the text of a message or of a part of a content; None for another value."""
    texts = [entry.get(key) for key in ("content", "text")] if isinstance(entry, Mapping) else []
    return next((text for text in texts if isinstance(text, str)), None)
