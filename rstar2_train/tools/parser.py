r"""Reads the tool calls of a turn, and renders the text that answers each of them. Pure.

Used by the agent loop for rollouts and by the generator of demonstrations, so that both produce the same strings; they
are stable. A call of a tool that the row does not allow is unknown. Calls have the Hermes form,
`<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`, or that of another family (`call_form.py`). Every call
of a turn has a response in its place: the output of a valid call, the error of an invalid one (a tool error in the
paper's eq. 4).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rstar2_train.tools.call_form import FORMS, read_calls
from rstar2_train.tools.schema import CALL_CLOSE, CALL_OPEN, call_text
from rstar2_train.tools.toolset import Toolset, builtin_toolset
from rstar2_train.tools.types import CallStatus
from rstar2_train.utils.text import lone_surrogate

if TYPE_CHECKING:
    from rstar2_train.api.roles import ToolParser

_PYTHON = builtin_toolset()
_FRAME = re.compile(r'File "<snippet>", line (\d+)')
_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder()
INVALID_CALL = "error: invalid tool call"
"""Start of what a model receives for a malformed call."""
MOST_CALLS = 64
"""Largest `spec.rollout.maxCallsPerTurn`. The position of a JSON error costs a scan of the text, so calls are counted
before they are parsed."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call of a turn, valid or invalid."""

    name: str = ""
    code: str = ""
    """The program; of a function tool, its arguments as JSON."""
    stdin: str = ""
    fault: Literal["", "malformed", "unknown_tool"] = ""
    """Empty: the call can run. Otherwise its response is an error, and it never runs."""
    detail: str = ""
    """The fault of a malformed call, in words."""


def parse_calls(text: str, *, max_calls: int, tools: Toolset = _PYTHON) -> list[ParsedCall]:
    """Return every `<tool_call>` of a turn, in order. An invalid call, or a call of another tool, has a fault.

    A JSON parser reads the call, so `</tool_call>` inside a string does not close it. A call without a closing tag is
    malformed. Calls after the first `max_calls` are malformed, and not parsed. At most `max_calls` of them are
    returned: a model that repeats tags without end gets a bounded reply. The time is linear in the length of the text.
    """
    if tools.parser != "hermes":
        return _parse_family(text, max_calls, tools)
    tags = _Tags(text)
    calls: list[ParsedCall] = []
    at = tags.opening.after(0)
    while at >= 0 and len(calls) < max_calls:
        call, end = _parse_call(tags, at + len(CALL_OPEN), tools)
        calls.append(call)
        at = tags.opening.after(end)
    excess = 0
    while at >= 0 and excess < max_calls:
        excess += 1
        at = tags.opening.after(_resume(tags, at + len(CALL_OPEN)))
    return calls + [_excess(max_calls)] * excess


def _parse_family(text: str, max_calls: int, tools: Toolset) -> list[ParsedCall]:
    """Parse as `parse_calls`, for calls in another form than Hermes."""
    calls: list[ParsedCall] = []
    for call in itertools.islice(read_calls(text, tools.parser), 2 * max_calls):
        if len(calls) >= max_calls:
            calls.append(_excess(max_calls))
        else:
            malformed = ParsedCall(fault="malformed", detail=call.fault)
            calls.append(malformed if call.fault else _validate_call(call.value, tools))
    return calls


def _excess(max_calls: int) -> ParsedCall:
    return ParsedCall(fault="malformed", detail=f"more than {max_calls} calls in one turn")


def write_calls(calls: Sequence[tuple[str, dict[str, Any]]], parser: ToolParser = "hermes") -> str:
    """Return calls, given by name and arguments, as a model writes them. Raises ValueError for unwritable ones."""
    if parser == "hermes":
        return "\n".join(call_text(name, arguments) for name, arguments in calls)
    return FORMS[parser].write(calls)


def written_calls(text: str, parser: ToolParser = "hermes") -> list[tuple[str, Any]] | None:
    """Return name and arguments of every call of a turn, of any tool; None if one is malformed."""
    if parser != "hermes":
        return _pairs(call.value for call in read_calls(text, parser))
    calls = []
    for start, end in call_spans(text):
        try:
            calls.append(json.loads(text[start + len(CALL_OPEN) : end - len(CALL_CLOSE)]))
        except (ValueError, RecursionError):
            return None
    return _pairs(calls)


def first_fault(text: str, parser: ToolParser = "hermes", results: Sequence[str] = ()) -> str:
    """Return the fault of the first malformed call of a turn, of any tool, in words; empty: there is none.

    `results`: what the model receives for the calls, in order. A malformed call whose result is the error of a rollout
    does not count.
    """
    calls = parse_calls(text, max_calls=MOST_CALLS, tools=Toolset((), parser=parser))
    for call, result in zip(calls, itertools.chain(results, itertools.repeat("")), strict=False):
        if call.fault == "malformed" and not result.startswith(INVALID_CALL):
            return call.detail
    return ""


def _pairs(calls: Iterable[Any]) -> list[tuple[str, Any]] | None:
    """Return name and arguments of each call; None if one has other fields."""
    pairs = []
    for call in calls:
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            return None
        pairs.append((call["name"], call["arguments"]))
    return pairs


def call_spans(text: str, parser: ToolParser = "hermes") -> list[tuple[int, int]]:
    """Return (start, end) of each call of a turn, tags included, end exclusive; also of invalid calls.

    Calls that share brackets have one span. Only as many calls are parsed as a turn may run; the spans of further calls
    end at the next tag.
    """
    if parser != "hermes":
        calls = itertools.islice(read_calls(text, parser), MOST_CALLS)
        return list(dict.fromkeys((call.start, call.end) for call in calls))
    tags = _Tags(text)
    spans: list[tuple[int, int]] = []
    at = tags.opening.after(0)
    while at >= 0:
        start = at + len(CALL_OPEN)
        end = _parse_call(tags, start, _PYTHON)[1] if len(spans) < MOST_CALLS else _resume(tags, start)
        spans.append((at, end))
        at = tags.opening.after(end)
    return spans


def render_fault(call: ParsedCall) -> str:
    """Return the tool response of a call that cannot run."""
    return render_result(status=call.fault or "malformed", name=call.name, detail=call.detail)


def render_result(
    *,
    status: CallStatus,
    stdout: str = "",
    stderr: str = "",
    exit_code: int | None = None,
    wall_seconds: float = 4.0,
    name: str = "",
    detail: str = "",
) -> str:
    """Return the tool response of a call: its output, or one short line that starts with `error: `.

    `wall_seconds`: time limit of the call; `name`: name of an unknown tool; `detail`: fault of a malformed call. The
    output of a failed program follows the error line. Raises ValueError for `internal`, an infrastructure failure,
    which a model never receives.
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
            return f"{INVALID_CALL}: {detail or stderr.strip() or 'it cannot be run'}"
        case "unknown_tool":
            return f"error: unknown tool {name!r}"
    raise ValueError(f"status {status!r} is an infrastructure failure: repeat the call, do not show it to the model")


class _TagSearch:
    """Finds the next position of one tag. Positions to search from must not decrease: each character is read once."""

    def __init__(self, text: str, tag: str) -> None:
        self._text, self._tag = text, tag
        self._next = text.find(tag)

    def after(self, start: int) -> int:
        """Return the first position of the tag at or after `start`; -1 if there is none."""
        if 0 <= self._next < start:
            self._next = self._text.find(self._tag, start)
        return self._next


class _Tags:
    """The text of a turn and its tags."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.opening, self.closing = _TagSearch(text, CALL_OPEN), _TagSearch(text, CALL_CLOSE)


def _parse_call(tags: _Tags, start: int, tools: Toolset) -> tuple[ParsedCall, int]:
    """Return the call whose opening tag ends at `start`, and the position from which to search for the next one."""
    try:
        value, end = _DECODER.raw_decode(tags.text, _skip_space(tags.text, start))
    except ValueError as error:  # also a number with more digits than Python reads
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        return ParsedCall(fault="malformed", detail=f"not valid JSON ({detail})"), _resume(tags, start)
    except RecursionError:
        return ParsedCall(fault="malformed", detail="not valid JSON (nested too deep)"), _resume(tags, start)
    after = _skip_space(tags.text, end)
    if tags.text.startswith(CALL_CLOSE, after):
        return _validate_call(value, tools), after + len(CALL_CLOSE)
    opening, closing = tags.opening.after(end), tags.closing.after(end)
    is_closed = closing >= 0 and (opening < 0 or closing < opening)
    detail = f"text between the JSON and {CALL_CLOSE}" if is_closed else f"no {CALL_CLOSE}"
    return ParsedCall(name=_name(value), fault="malformed", detail=detail), _resume(tags, end)


def _skip_space(text: str, start: int) -> int:
    """Return the position of the first character from `start` on that is not white space."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _resume(tags: _Tags, start: int) -> int:
    """Return where the search continues after a malformed call: its closing tag or the next opening tag."""
    closing, opening = tags.closing.after(start), tags.opening.after(start)
    if closing < 0 or 0 <= opening < closing:
        return opening if opening >= 0 else len(tags.text)
    return closing + len(CALL_CLOSE)


def _validate_call(value: Any, tools: Toolset) -> ParsedCall:
    """Return the call of a decoded JSON value; a value that violates the tool's signature has a fault."""
    if not isinstance(value, dict):
        return ParsedCall(fault="malformed", detail="not a JSON object")
    name = _name(value)
    if not name:
        return ParsedCall(fault="malformed", detail='"name" must be a string')
    if "arguments" not in value:
        return ParsedCall(name=name, fault="malformed", detail='"arguments" is missing')
    arguments = value["arguments"]
    if not isinstance(arguments, dict):
        return ParsedCall(name=name, fault="malformed", detail='"arguments" must be an object')
    tool = tools.by_name.get(name)
    if tool is None:
        return ParsedCall(name=name, fault="unknown_tool")
    try:
        code, stdin = tool.read(arguments)
    except ValueError as error:
        return ParsedCall(name=name, fault="malformed", detail=str(error))
    return ParsedCall(name=name, code=code, stdin=stdin)


def _name(value: Any) -> str:
    """Return the name in a decoded call; empty if it is missing or cannot be stored."""
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) and not lone_surrogate(name) else ""


def _last_error(stderr: str, exit_code: int | None) -> str:
    """Return one line for a failed program: position and exception, or its last line, or its exit code."""
    lines = stderr.rstrip().splitlines()
    if not lines:
        return f"exit code {exit_code}" if exit_code is not None else "failed"
    frame = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].lstrip().startswith('File "')), None)
    if frame is None:
        return lines[-1].strip()
    # The exception is the first line after the last frame that is not indented; its message may have more lines.
    exception = next((line for line in lines[frame + 1 :] if line and not line[0].isspace()), lines[-1]).strip()
    numbers = _FRAME.findall(stderr)
    return f"line {numbers[-1]}: {exception}" if numbers else exception
