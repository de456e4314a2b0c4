"""Texts of observations, and actions of calls."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_train.api.tasks import EnvironmentSpec
from rstar2_train.tools.environment import EnvironmentTools
from rstar2_train.tools.episode_servers import EpisodeServers
from rstar2_train.tools.openenv import Observation


def tools(*, calls_tools: bool = False, observation: str | None = None) -> EnvironmentTools:
    """Return an environment without signatures."""
    spec = EnvironmentSpec(name="game", url="http://game:8000", observation=observation)
    return EnvironmentTools(spec, EpisodeServers(spec, ()), (), calls_tools=calls_tools)


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"text": "higher", "metadata": {"secret": 7}}, None, "higher"),
        ({"text": "higher", "board": [1, 2]}, None, '{"text": "higher", "board": [1, 2]}'),
        ({"text": "higher", "board": [1, 2]}, "board", "[1, 2]"),
        ({"messages": [{"sender_id": 0, "content": "a"}, {"sender_id": 1, "content": "b"}]}, "messages", "a\nb"),
        ({"text": "higher"}, "missing", ""),
        ({}, None, ""),
    ],
)
def test_text_of_an_observation(fields: dict[str, Any], field: str | None, text: str) -> None:
    """One field is its text, several are JSON; metadata is hidden; the manifest may choose a field."""
    assert tools(observation=field).text(Observation(fields, None, done=False)) == (text, False)


def test_text_of_a_tool_result() -> None:
    """The result of a tool is its text parts; an error is a tool error."""
    environment = tools(calls_tools=True)
    result = {"result": {"content": [{"type": "text", "text": "7"}], "is_error": False}, "tool_name": "add"}
    assert environment.text(Observation(result, None, done=False)) == ("7", False)
    error = {"error": {"error_type": "tool_not_found", "message": "no tool"}, "tool_name": "f"}
    assert environment.text(Observation(error, None, done=False)) == ("no tool", True)
    assert environment.action("add", {"a": 1}) == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}
