"""The forms in which model families write tool calls, besides Hermes (`parser.py`): reading, writing, and their prompt.

The chat template of a model selects the form (`parser_of_template`), unless `spec.model.toolParser` does. Text of a
model is untrusted: values are parsed as literals, and nothing is evaluated. Pure.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rstar2_train.api.roles import ToolParser

Arguments = dict[str, Any]
_DECODER = json.JSONDecoder()
_LINE = r"(?:\A|(?<=\n))[ \t]*"
_JSON_START = re.compile(_LINE + r"(?:<\|python_tag\|>)?(?=\{\s*\"(?:name|type)\"\s*:)")
_LIST_START = re.compile(_LINE + r"(?:<\|python_(?:tag|start)\|>)?(?=\[\s*[A-Za-z_][\w.]*\()")
_MISTRAL_START = re.compile(r"\[TOOL_CALLS\]\s*")
_MISTRAL_NAME = re.compile(r"([^\s\[\]{}]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")
_GEMMA_START = re.compile(_LINE + r"```tool_code[ \t]*\n")
_GEMMA_END = re.compile(r"\n```(?=[ \t]*(?:\n|\Z))")
_NEXT_JSON = re.compile(r"\s*;\s*(?=\{)")
_CONSTANTS = {"true": True, "false": False, "null": None}
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """One call of a turn as it is written."""

    start: int
    end: int
    """Position in the turn, end exclusive. Calls that share brackets have the same position."""
    value: Any = None
    """`{"name", "arguments"}` if the call can be read."""
    fault: str = ""
    """The fault of a malformed call, in words."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a family writes calls."""

    start: re.Pattern[str]
    """The start of a call or of a list of calls."""
    read: Callable[[str, int, int], Iterator[WrittenCall]]
    """Yields the calls at a start: `read(text, start of the match, its end)`."""
    write: Callable[[Sequence[tuple[str, Arguments]]], str]
    """Returns the text of the calls of a turn. Raises ValueError for a call without such a text."""
    instruction: str
    """How to write a call, for the system prompt."""
    marks: tuple[str, ...]
    """Texts of a chat template that show the form."""


def read_calls(text: str, parser: ToolParser) -> Iterator[WrittenCall]:
    """Yield the calls of a turn in order. The work per call is linear in the length of the text."""
    form, at = FORMS[parser], 0
    while match := form.start.search(text, at):
        at = max(match.end(), match.start() + 1)
        for call in form.read(text, match.start(), match.end()):
            at = max(at, call.end)
            yield call


def family_section(signatures: Sequence[Mapping[str, Any]], parser: ToolParser) -> str:
    """Return the end of a system prompt: the functions, and how the family writes a call."""
    lines = "\n".join(json.dumps(signature, ensure_ascii=False) for signature in signatures)
    return (
        f"# Tools\n\nThese functions may be called. Their signatures, one JSON object per line:\n{lines}\n\n"
        f"{FORMS[parser].instruction}\n"
        "Then end your turn: the output comes back between <tool_response> and </tool_response>."
    )


def parser_of_template(template: str) -> ToolParser:
    """Return the form of calls that a chat template shows; without one, Hermes, as in the paper."""
    if "<tool_call>" in template:
        return "hermes"
    for parser, form in FORMS.items():
        if any(mark in template for mark in form.marks):
            return parser
    return "hermes"


def _read_json(text: str, start: int, end: int) -> Iterator[WrittenCall]:
    """Read `{"name": ..., "parameters": {...}}` of Llama 3, several separated by `;`."""
    while True:
        value, after, fault = _decode(text, end)
        if fault:
            yield WrittenCall(start, end + 1, fault=fault)
            return
        given = {key: entry for key, entry in value.items() if key != "type"} if isinstance(value, dict) else {}
        if "parameters" in given:
            given["arguments"] = given.pop("parameters")
        yield WrittenCall(start, after, value=given)
        following = _NEXT_JSON.match(text, after)
        if following is None:
            return
        start, end = after, following.end()


def _read_mistral(text: str, start: int, end: int) -> Iterator[WrittenCall]:
    """Read `[TOOL_CALLS][{"name", "arguments"}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` of later versions."""
    if name := _MISTRAL_NAME.match(text, end):
        arguments, after, fault = _decode(text, name.end())
        yield WrittenCall(start, after, value={"name": name.group(1), "arguments": arguments}, fault=fault)
        return
    calls, after, fault = _decode(text, end)
    if not fault and (not isinstance(calls, list) or not calls):
        fault = "not a list of calls"
    if fault:
        yield WrittenCall(start, after, fault=fault)
        return
    for call in calls:
        yield WrittenCall(start, after, value=call)


def _read_list(text: str, start: int, end: int) -> Iterator[WrittenCall]:
    """Read `[name(argument=value, ...), ...]`."""
    after = _closing(text, end)
    if after < 0:
        yield WrittenCall(start, end + 1, fault="no closing bracket")
        return
    yield from _python_calls(text[end:after], start, after)


def _read_fence(text: str, start: int, end: int) -> Iterator[WrittenCall]:
    """Read a block ```` ```tool_code ```` with one call per line."""
    close, following = _GEMMA_END.search(text, end - 1), _GEMMA_START.search(text, end)
    if close is None or (following is not None and following.start() < close.start()):
        yield WrittenCall(start, end, fault="no closing ```")
        return
    yield from _python_calls(text[end : max(end, close.start())], start, close.end())


def _decode(text: str, at: int) -> tuple[Any, int, str]:
    """Return the JSON value at a position, the position after it, and the fault."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except ValueError as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        return None, at, f"not valid JSON ({detail})"
    except RecursionError:
        return None, at, "not valid JSON (nested too deep)"
    return value, end, ""


def _closing(text: str, start: int) -> int:
    """Return the position after the bracket that closes the one at `start`; -1 without one. Quotes are respected."""
    depth, quote, at = 0, "", start
    while at < len(text):
        character = text[at]
        if quote:
            if character == "\\":
                at += 1
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return -1


def _python_calls(source: str, start: int, end: int) -> Iterator[WrittenCall]:
    """Yield the calls of a Python list, or of one call per line. Their arguments are literals with a name."""
    try:
        statements = ast.parse(source.strip()).body
        nodes = [node.value if isinstance(node, ast.Expr) else node for node in statements]
        if len(nodes) == 1 and isinstance(nodes[0], ast.List):
            nodes = list(nodes[0].elts)
        calls = [_python_call(node) for node in nodes]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        detail = error.msg if isinstance(error, SyntaxError) else str(error)
        yield WrittenCall(start, end, fault=f"not a call with named literals ({detail or 'nested too deep'})")
        return
    if not calls:
        yield WrittenCall(start, end, fault="no call")
    for call in calls:
        yield WrittenCall(start, end, value=call)


def _python_call(node: ast.AST) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("every argument needs a name")
    name = ast.unparse(node.func)
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not a name")
    arguments = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    return {"name": name, "arguments": json.loads(json.dumps(arguments, allow_nan=False))}


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    return ast.literal_eval(node)


def _python_text(name: str, arguments: Arguments) -> str:
    if not all(_NAME.fullmatch(word) for word in (name, *arguments)):
        raise ValueError(f"{name!r} and its arguments must be Python names")
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _json_text(calls: Sequence[tuple[str, Arguments]]) -> str:
    return "; ".join(json.dumps({"name": name, "parameters": given}, ensure_ascii=False) for name, given in calls)


def _mistral_text(calls: Sequence[tuple[str, Arguments]]) -> str:
    written = [{"name": name, "arguments": given} for name, given in calls]
    return "[TOOL_CALLS]" + json.dumps(written, ensure_ascii=False)


def _list_text(calls: Sequence[tuple[str, Arguments]]) -> str:
    return f"[{', '.join(_python_text(*call) for call in calls)}]"


def _fence_text(calls: Sequence[tuple[str, Arguments]]) -> str:
    lines = "\n".join(_python_text(*call) for call in calls)
    return f"```tool_code\n{lines}\n```"


FORMS: Mapping[ToolParser, CallForm] = {
    "mistral": CallForm(
        _MISTRAL_START,
        _read_mistral,
        _mistral_text,
        "To call functions, write a JSON list of their names and arguments after [TOOL_CALLS]:\n"
        '[TOOL_CALLS][{"name": "<function>", "arguments": {"<argument>": "<value>"}}]',
        ("[TOOL_CALLS]",),
    ),
    "pythonic": CallForm(
        _LIST_START,
        _read_list,
        _list_text,
        "To call functions, write a list of calls on a line of its own:\n"
        '[<function>(<argument>="<value>"), <function>(<argument>=<number>)]',
        ("func_name1(params_name1=", "<|python_start|>"),
    ),
    "llama3_json": CallForm(
        _JSON_START,
        _read_json,
        _json_text,
        "To call one, write a JSON object with name and parameters on a line of its own; separate several by `; `:\n"
        '{"name": "<function>", "parameters": {"<argument>": "<value>"}}',
        ("<|python_tag|>", "ipython"),
    ),
    "gemma": CallForm(
        _GEMMA_START,
        _read_fence,
        _fence_text,
        "To call functions, write one call per line in a block:\n"
        '```tool_code\n<function>(<argument>="<value>")\n```',
        ("<start_of_turn>", "```tool_code"),
    ),
}  # fmt: skip
"""Form of calls -> how it is read and written; Hermes is in `parser.py`."""
