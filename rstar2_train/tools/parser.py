r"""The tool protocol: how a tool's calls are read from a turn, and what the model is shown back.

Used by the agent loop for rollouts and by the generator of demonstrations, so that both write the same strings; they
are stable. A job has one tool (`spec.rollout.tool`). Calls have the Hermes form:
`<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`. Every call of a turn is answered in its place: the good
ones by what they printed, the bad ones by what is wrong with them (the paper counts those as tool errors, eq. 4). Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rstar2_train.api.roles import ToolName
from rstar2_train.tools.schema import CALL_CLOSE as _CLOSE
from rstar2_train.tools.schema import CALL_OPEN as _OPEN
from rstar2_train.tools.schema import JUPYTER, TOOL_NAME, TOOLS, call_text
from rstar2_train.tools.types import CallStatus
from rstar2_train.utils.text import half_character

__all__ = [
    "JUPYTER",
    "TOOLS",
    "TOOL_NAME",
    "ParsedCall",
    "clip_middle",
    "parse_calls",
    "render_call",
    "render_parsed",
    "render_result",
]

_FRAME = re.compile(r'File "<snippet>", line (\d+)')
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call of a turn, good or bad."""

    name: str = ""
    code: str = ""
    stdin: str = ""
    fault: Literal["", "malformed", "unknown_tool"] = ""
    """Empty: the call can run. Otherwise it is answered with an error and never runs."""
    why: str = ""
    """What is wrong with a malformed call."""


def parse_calls(text: str, *, max_calls: int, tool: ToolName = TOOL_NAME) -> list[ParsedCall]:
    """Every `<tool_call>` of a model's turn, in order; a bad one, or one of another tool, becomes a fault in its slot.

    The JSON is read with a JSON parser from where it starts, so `</tool_call>` inside a string ends nothing. A call
    that is never closed is malformed. Calls after the first `max_calls` are faults.
    """
    calls: list[ParsedCall] = []
    for call, _, _ in _each(text, tool):
        if len(calls) >= max_calls:
            call = ParsedCall(name=call.name, fault="malformed", why=f"more than {max_calls} calls in one turn")
        calls.append(call)
    return calls


def call_spans(text: str) -> list[tuple[int, int]]:
    """Where each `<tool_call>` of a model's turn begins and ends (exclusive), tags included; a bad one too."""
    return [(begin, end) for _, begin, end in _each(text, TOOL_NAME)]


def render_call(code: str, stdin: str = "") -> str:
    """A call of the Python tool as a model writes it."""
    return call_text(TOOL_NAME, {"code": code, "input": stdin})


def render_parsed(call: ParsedCall) -> str:
    """What the model is shown for a call that cannot run."""
    return render_result(status=call.fault or "malformed", name=call.name, why=call.why)


def render_result(
    *,
    status: CallStatus,
    stdout: str = "",
    stderr: str = "",
    exit_code: int | None = None,
    wall_seconds: float = 4.0,
    name: str = "",
    why: str = "",
) -> str:
    """The text that a model is shown for a call: its output, or one short line that starts with `error: `.

    `wall_seconds`: the call's time limit; `name`: of an unknown tool; `why`: what is wrong with a malformed call.
    What a failed program had printed follows its error line. Raises ValueError for `internal`, which is a failure of
    the infrastructure and is never shown to a model.
    """
    printed = stdout.strip()
    match status:
        case "ok":
            return "\n".join(part for part in (printed, stderr.strip()) if part) or "(no output)"
        case "error":
            error = "error: " + _last_error(stderr, exit_code)
            return f"{error}\noutput before it:\n{printed}" if printed else error
        case "timeout":
            return f"error: timed out after {wall_seconds:g} s"
        case "memory":
            return "error: out of memory"
        case "output_limit":
            return "error: too much output"
        case "killed":
            return "error: killed"
        case "session_lost":
            return "error: the session was lost, and all that it had defined"
        case "malformed" | "invalid":
            return f"error: invalid tool call: {why or stderr.strip() or 'it cannot be run'}"
        case "unknown_tool":
            return f"error: unknown tool {name!r}"
    raise ValueError(f"status {status!r} is a failure of the infrastructure: repeat the call, show the model nothing")


def clip_middle(text: str, *, limit: int) -> str:
    """Text of at most about `limit` characters: the middle is left out, and the cut says how much."""
    if len(text) <= limit:
        return text
    head = limit - limit // 2
    return f"{text[:head]}\n...({len(text) - limit} characters left out)...\n{text[len(text) - limit // 2 :]}"


def _each(text: str, tool: ToolName) -> Iterator[tuple[ParsedCall, int, int]]:
    """Every call of a turn, with its span."""
    at = text.find(_OPEN)
    while at >= 0:
        call, end = _parse_one(text, at + len(_OPEN), tool)
        yield call, at, end
        at = text.find(_OPEN, end)


def _parse_one(text: str, start: int, tool: ToolName) -> tuple[ParsedCall, int]:
    """The call whose opening tag ends at `start`, and where to look for the next one."""
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except ValueError as error:  # also a number of more digits than Python reads
        why = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        return ParsedCall(fault="malformed", why=f"not valid JSON ({why})"), _resume(text, start)
    except RecursionError:
        return ParsedCall(fault="malformed", why="not valid JSON (nested too deep)"), _resume(text, start)
    rest = text[end:].lstrip()
    if rest.startswith(_CLOSE):
        return _check(value, tool), text.index(_CLOSE, end) + len(_CLOSE)
    why = f"text between the JSON and {_CLOSE}" if _CLOSE in rest.split(_OPEN)[0] else f"no {_CLOSE}"
    return ParsedCall(name=_name(value), fault="malformed", why=why), _resume(text, end)


def _resume(text: str, start: int) -> int:
    """After a broken call: behind its closing tag, or at the next opening tag if that comes first."""
    close, opening = text.find(_CLOSE, start), text.find(_OPEN, start)
    if close < 0 or 0 <= opening < close:
        return opening if opening >= 0 else len(text)
    return close + len(_CLOSE)


def _check(value: Any, tool: ToolName) -> ParsedCall:
    """A decoded call against the tool's signature."""
    if not isinstance(value, dict):
        return ParsedCall(fault="malformed", why="not a JSON object")
    name = _name(value)
    if not name:
        return ParsedCall(fault="malformed", why='"name" must be a string')
    if "arguments" not in value:
        return ParsedCall(name=name, fault="malformed", why='"arguments" is missing')
    arguments = value["arguments"]
    if not isinstance(arguments, dict):
        return ParsedCall(name=name, fault="malformed", why='"arguments" must be an object')
    if name != tool:
        return ParsedCall(name=name, fault="unknown_tool")
    unknown = sorted(set(arguments) - set(TOOLS[tool]["function"]["parameters"]["properties"]))
    if unknown:
        return ParsedCall(name=name, fault="malformed", why=f"unknown argument {unknown[0]!r}")
    code: Any = arguments.get("code")
    stdin: Any = arguments.get("input", "")
    for argument, value in (("code", code), ("input", stdin)):
        if not isinstance(value, str):
            return ParsedCall(name=name, fault="malformed", why=f'"{argument}" must be a string')
        if half_character(value):
            return ParsedCall(name=name, fault="malformed", why=f'"{argument}" holds half a surrogate pair')
    return ParsedCall(name=name, code=code, stdin=stdin)


def _name(value: Any) -> str:
    """The name in a decoded call; empty where there is none that could be stored."""
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and not half_character(name) else ""


def _last_error(stderr: str, exit_code: int | None) -> str:
    """One line for a failed program: where and which exception; the last line it wrote; or its exit code."""
    lines = stderr.rstrip().splitlines()
    if not lines:
        return f"exit code {exit_code}" if exit_code is not None else "failed"
    frame = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].lstrip().startswith('File "')), None)
    if frame is None:
        return lines[-1].strip()
    # The exception's own line is the first that is not indented behind the last frame; its message may go on.
    exception = next((line for line in lines[frame + 1 :] if line and not line[0].isspace()), lines[-1]).strip()
    numbers = _FRAME.findall(stderr)
    return f"line {numbers[-1]}: {exception}" if numbers else exception
