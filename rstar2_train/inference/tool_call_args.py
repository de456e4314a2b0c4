"""The vLLM arguments that an engine needs to serve clients in addition to the job's own. Pure.

Used by `rstar2 serve` and by the builder of serving manifests.
"""

from __future__ import annotations

from rstar2_train.api.base import AnyValue
from rstar2_train.api.roles import ModelSource


def tool_call_arguments(source: ModelSource) -> dict[str, AnyValue]:
    """Return the vLLM arguments that parse calls of a client's own tools.

    `source`: of the served model; its chat template is a path that the engine can read. An engine parses no calls of
    Gemma, for which vLLM has no parser of texts.
    """
    arguments: dict[str, AnyValue] = {}
    if source.tool_parser != "gemma":
        arguments = {"enable-auto-tool-choice": True, "tool-call-parser": source.tool_parser or "hermes"}
    if source.chat_template:
        arguments["chat-template"] = source.chat_template
    return arguments
