"""What an engine needs beyond a job's own settings to serve people: told to it locally and on a cluster alike. Pure."""

from __future__ import annotations

from rstar2_train.api.base import AnyValue
from rstar2_train.api.roles import ModelSource


def tool_call_arguments(source: ModelSource) -> dict[str, AnyValue]:
    """vLLM arguments with which an engine reads the calls of a client's own tools.

    `source`: the served model's, with its chat template as a path that the engine sees.
    """
    arguments: dict[str, AnyValue] = {"enable-auto-tool-choice": True, "tool-call-parser": source.tool_parser}
    if source.chat_template:
        arguments["chat-template"] = source.chat_template
    return arguments
