"""How tools are written down for a model: the Python tools' signatures, and the section of a system prompt about them.

Below the agent loop (tools/parser.py, rollout/chat_format.py) and the converters of demonstrations
(data/prepare/conversations.py): what a model learns in the cold start is to the letter what it is shown in a rollout.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pydantic is slow to load, and `rstar2 --help` comes by here
    from rstar2_train.api.roles import ToolName

TOOL_NAME: ToolName = "execute_python_code_with_standard_io"
"""The tool's name in the paper."""
JUPYTER: ToolName = "jupyter_code"
"""The other tool of the paper's public code; here with real sessions (judge/client/session.py)."""
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


def _signature(name: ToolName, description: str, arguments: dict[str, str]) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SHOWN = "The value of a last line that is an expression is printed too."
TOOLS: dict[ToolName, dict[str, Any]] = {
    TOOL_NAME: _signature(
        TOOL_NAME,
        f"Runs a Python program by itself, gives it `input` on standard input, and returns what it prints. {SHOWN}",
        {"code": "The whole Python program.", "input": "Standard input of the program; may be empty."},
    ),
    JUPYTER: _signature(
        JUPYTER,
        "Runs a cell of Python in your notebook, which keeps what earlier cells defined, and returns what it prints. "
        + SHOWN,
        {"code": "The cell."},
    ),
}
"""JSON signatures of the tools, as the system prompt shows them."""


def tools_section(signatures: Sequence[dict[str, Any]]) -> str:
    """The end of a system prompt: which functions there are, how to call one. The form is the paper's (Fig. 2)."""
    lines = "\n".join(json.dumps(signature, ensure_ascii=False) for signature in signatures)
    return (
        "# Tools\n\n"
        "These functions may be called. Their signatures, one JSON object a line:\n"
        f"<tools>\n{lines}\n</tools>\n\n"
        "To call one, write a JSON object with its name and its arguments between tags:\n"
        f'{CALL_OPEN}\n{{"name": "<function>", "arguments": {{"<argument>": "<value>"}}}}\n{CALL_CLOSE}\n'
        "Then end your turn: the output comes back between <tool_response> and </tool_response>."
    )


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """A call as a model writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{CALL_OPEN}\n{call}\n{CALL_CLOSE}"
