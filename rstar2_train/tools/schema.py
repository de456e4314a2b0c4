"""The signatures of the built-in tools, and the section of a system prompt that describes tools. Pure.

Used by the agent loop (tools/parser.py, rollout/chat_format.py) and by the converters of demonstrations
(data/prepare/conversations.py): demonstrations and rollouts have the same text, character by character.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pydantic is slow to import, and `rstar2 --help` imports this module
    from rstar2_train.api.roles import ToolName

TOOL_NAME: ToolName = "execute_python_code_with_standard_io"
"""The Python tool, under its name in the paper."""
JUPYTER: ToolName = "jupyter_code"
"""The notebook tool of the paper's public code; here it runs in a judge session (judge/client/session.py)."""
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"


def _signature(name: ToolName, description: str, arguments: dict[str, str]) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": text} for argument, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_LAST_EXPRESSION = "The value of a last line that is an expression is printed too."
TOOLS: dict[ToolName, dict[str, Any]] = {
    TOOL_NAME: _signature(
        TOOL_NAME,
        "Runs a Python program by itself, gives it `input` on standard input, and returns what it prints. "
        + _LAST_EXPRESSION,
        {"code": "The whole Python program.", "input": "Standard input of the program; may be empty."},
    ),
    JUPYTER: _signature(
        JUPYTER,
        "Runs a cell of Python in your notebook, which keeps what earlier cells defined, and returns what it prints. "
        + _LAST_EXPRESSION,
        {"code": "The cell."},
    ),
}
"""JSON signature of each tool, as in the system prompt."""


def tools_section(signatures: Sequence[dict[str, Any]]) -> str:
    """Return the end of a system prompt: the functions and the syntax of a call, in the form of the paper's Fig. 2."""
    lines = "\n".join(json.dumps(signature, ensure_ascii=False) for signature in signatures)
    return (
        "# Tools\n\n"
        "These functions may be called. Their signatures, one JSON object a line:\n"
        f"<tools>\n{lines}\n</tools>\n\n"
        "To call one, write a JSON object with its name and its arguments between tags:\n"
        f'{CALL_OPEN}\n{{"name": "<function>", "arguments": {{"<argument>": "<value>"}}}}\n{CALL_CLOSE}\n'
        "Then end your turn: the output comes back between <tool_response> and </tool_response>."
    )


def qwen_tools_section(signatures: Sequence[dict[str, Any]]) -> str:
    """Return the end of a system prompt in the words of Qwen's chat templates, byte for byte."""
    lines = "".join(f"\n{json.dumps(signature, ensure_ascii=False)}" for signature in signatures)
    return (
        "# Tools\n\n"
        "You may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>{lines}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        f"{CALL_OPEN}{CALL_CLOSE} XML tags:\n"
        f'{CALL_OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CALL_CLOSE}'
    )


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """Return a call as a model writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{CALL_OPEN}\n{call}\n{CALL_CLOSE}"
