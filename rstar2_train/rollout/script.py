"""The turns of a scripted model, for `rstar2 env check`: read from a file, or written for a row. Pure but for reading.

A script is a text file with the turns of the model, exactly as a model writes them, separated by lines `---`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rstar2_train.api.tasks import RewardType
from rstar2_train.tools.parser import write_calls
from rstar2_train.tools.schema import JUPYTER, TOOL_NAME
from rstar2_train.tools.toolset import Toolset

SEPARATOR = "---"
"""Line between two turns."""
_BOXED: tuple[RewardType, ...] = ("Math", "Numeric", "Choice")
"""Rewards whose answers have no braces of their own, so that the default script can put them into a box."""
_VALUES: Mapping[str, Any] = {
    "string": "x",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}
"""Type of a JSON schema -> a value of this type."""


def read_script(path: Path) -> list[str]:
    """Return the turns of a script, in order. Raises ValueError for a file without text, and OSError."""
    turns: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() == SEPARATOR:
            turns.append([])
        else:
            turns[-1].append(line)
    texts = ["\n".join(turn).strip() for turn in turns]
    if not all(texts):
        raise ValueError(f"{path}: turn {texts.index('') + 1} is empty; separate turns by a line {SEPARATOR!r}")
    return texts


def default_script(tools: Toolset, *, answer: str, reward: RewardType) -> list[str]:
    """Return a turn that calls each tool once with placeholder arguments, and a turn with the known answer."""
    parameters = {tool.name: tool.signature["function"]["parameters"] for tool in tools.tools}
    calls = [(name, _arguments(name, schema)) for name, schema in parameters.items()]
    final = f"\\boxed{{{answer}}}" if reward in _BOXED else answer
    return [*([write_calls(calls, tools.parser)] if calls else []), f"<answer>{final}</answer>"]


def _arguments(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments that the schema of a tool accepts, with only the required ones."""
    if name in (TOOL_NAME, JUPYTER):
        return {"code": "print(6 * 7)"} | ({"input": ""} if name == TOOL_NAME else {})
    required = parameters.get("required", [])
    return {argument: _value(parameters["properties"].get(argument, {})) for argument in required}


def _value(schema: Mapping[str, Any]) -> Any:
    """Return a value that a schema accepts, as far as its type decides."""
    if schema.get("anyOf"):
        return _value(schema["anyOf"][0])
    if schema.get("enum"):
        return schema["enum"][0]
    return json.loads(json.dumps(_VALUES.get(schema.get("type", "string"), "x")))
