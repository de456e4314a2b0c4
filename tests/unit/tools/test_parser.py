"""Parsing of the tool calls of a turn, and the text of tool responses."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2_train.api.roles import RolloutSpec
from rstar2_train.tools.parser import (
    MOST_CALLS,
    ParsedCall,
    call_spans,
    parse_calls,
    render_fault,
    render_result,
)
from rstar2_train.tools.schema import TOOL_NAME
from tests.support.model_turns import render_call

GOOD = ParsedCall(name=TOOL_NAME, code="print(1)")


def call(payload: object) -> str:
    return f"<tool_call>\n{payload if isinstance(payload, str) else json.dumps(payload)}\n</tool_call>"


def named(arguments: object, name: object = TOOL_NAME) -> str:
    return call({"name": name, "arguments": arguments})


BAD = [
    (call('{"name": "x", "arguments": {"code": "1"}'), "not valid JSON (Expecting ',' delimiter)"),
    (call(""), "not valid JSON (Expecting value)"),
    (call('{"name": "x", "arguments": {"code": "a\nb"}}'), "not valid JSON (Invalid control character at)"),
    (call("[" * 100_000), "not valid JSON (nested too deep)"),
    (call('{"name": "x", "arguments": {"code": ' + "1" * 5000 + "}}"), "not valid JSON (a number is too long)"),
    (call([1]), "not a JSON object"),
    (call({"arguments": {"code": "1"}}), '"name" must be a string'),
    (call({"name": 7, "arguments": {}}), '"name" must be a string'),
    (call('{"name": "\\ud83d", "arguments": {"code": "1"}}'), '"name" must be a string'),
    (call({"name": TOOL_NAME}), '"arguments" is missing'),
    (named("print(1)"), '"arguments" must be an object'),
    (named({}), '"code" must be a string'),
    (named({"code": 1}), '"code" must be a string'),
    (named({"code": "1", "input": 3}), '"input" must be a string'),
    (named({"code": "1", "stdin": ""}), "unknown argument 'stdin'"),
    (named({"code": "x = '\ud800'"}), '"code" holds half a surrogate pair'),
    (named({"code": "1", "input": "\udfff"}), '"input" holds half a surrogate pair'),
    (render_call("1").removesuffix("</tool_call>"), "no </tool_call>"),
    (render_call("1").replace("\n</tool_call>", " and\n</tool_call>"), "text between the JSON and </tool_call>"),
    ("<tool_call>", "not valid JSON (Expecting value)"),
]


@pytest.mark.parametrize(("text", "detail"), BAD)
def test_parse_calls_malformed_call_is_a_fault(text: str, detail: str) -> None:
    """A malformed call names its fault; the valid calls around it are parsed."""
    bad = parse_calls(text, max_calls=8)
    assert [(call.fault, call.detail) for call in bad] == [("malformed", detail)]
    assert render_fault(bad[0]) == f"error: invalid tool call: {detail}"
    around = parse_calls(f"think {render_call('print(1)')} {text} {render_call('print(1)')} done", max_calls=8)
    assert [call.fault for call in around] == ["", "malformed", ""]
    assert around[0] == around[2] == GOOD


def test_parse_calls_unknown_tool_is_a_fault() -> None:
    """A call of another tool has the fault `unknown_tool`."""
    parsed = parse_calls(named({"query": "x"}, name="search"), max_calls=8)
    assert [(call.name, call.fault) for call in parsed] == [("search", "unknown_tool")]
    assert render_fault(parsed[0]) == "error: unknown tool 'search'"


def test_parse_calls_beyond_limit_are_faults() -> None:
    """Calls after the first `max_calls` are malformed, each in its place."""
    parsed = parse_calls(render_call("print(1)") * 3, max_calls=2)
    assert [call.fault for call in parsed] == ["", "", "malformed"]
    assert render_fault(parsed[2]) == "error: invalid tool call: more than 2 calls in one turn"


def test_parse_calls_repeated_tags_are_bounded() -> None:
    """A turn of nothing but tags has a bounded number of calls."""
    for unit in ("<tool_call>", "<tool_call>[", '<tool_call>["', "<tool_call>" + " " * 128, render_call("1")):
        text = unit * 20_000
        parsed = parse_calls(text, max_calls=8)
        assert len(parsed) == 16
        assert {call.detail for call in parsed[8:]} == {"more than 8 calls in one turn"}


@pytest.mark.parametrize(
    "unit",
    ["<tool_call>", "<tool_call>[", '<tool_call>["', '<tool_call>{"a": 1}', "</tool_call>", "<tool_call> " * 2, " "],
)
def test_parse_calls_time_is_linear(unit: str) -> None:
    """Eight times the text costs less than 40 times the CPU time, for the calls and for their spans."""

    def seconds(count: int) -> float:
        text = "<tool_call>" + unit * count
        started = time.thread_time()
        parse_calls(text, max_calls=MOST_CALLS)
        call_spans(text)
        return time.thread_time() - started

    few, many = (min(seconds(count) for _ in range(3)) for count in (4_000, 32_000))
    assert many < 40 * few + 0.01


def test_most_calls_is_the_manifest_limit() -> None:
    """Every manifest's limit on calls is within the number that is parsed for spans."""
    assert RolloutSpec(max_calls_per_turn=MOST_CALLS)
    with pytest.raises(ValueError, match="less than or equal"):
        RolloutSpec(max_calls_per_turn=MOST_CALLS + 1)


def test_parse_calls_ignores_tags_inside_strings() -> None:
    """A closing tag inside a JSON string does not close the call."""
    code = "print('</tool_call> <tool_call> <tool_response>')"
    assert parse_calls(render_call(code), max_calls=8) == [ParsedCall(name=TOOL_NAME, code=code)]


def test_call_spans_include_both_tags() -> None:
    """A span covers the call with its tags; the span of an unclosed call ends with the text."""
    good, inside, open_ended = call("1"), named({"code": "'</tool_call>'"}), "<tool_call>{"
    text = f"a {good} b {inside}{good} c {open_ended}"
    assert [text[start:end] for start, end in call_spans(text)] == [good, inside, good, open_ended]


def test_parse_calls_text_without_calls_is_empty() -> None:
    """A closing tag alone is not a call."""
    assert parse_calls("<answer>\\boxed{1}</answer> </tool_call>", max_calls=8) == []


def test_parse_calls_input_is_optional() -> None:
    """The argument `input` may be missing."""
    assert parse_calls(named({"code": "print(1)"}), max_calls=8) == [GOOD]


text = st.text(st.characters(codec="utf-8"), max_size=60)


@given(calls=st.lists(st.tuples(text, text), max_size=5), between=text.filter(lambda value: "<" not in value))
def test_render_call_is_parsed_back(calls: list[tuple[str, str]], between: str) -> None:
    """Any code and input survive rendering and parsing."""
    written = between.join(render_call(code, stdin) for code, stdin in calls)
    parsed = parse_calls(written, max_calls=5)
    assert [(call.code, call.stdin, call.fault) for call in parsed] == [(code, stdin, "") for code, stdin in calls]


pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", "{", "}", '"', "name", ":", "\\", "\n", "[", render_call("1"), "é"]
)


@given(st.lists(pieces, max_size=14).map("".join), st.integers(1, 3))
def test_parse_calls_accepts_any_text(text: str, most: int) -> None:
    """Any text is parsed without an error, and every fault has a response."""
    parsed = parse_calls(text, max_calls=most)
    assert len(parsed) <= text.count("<tool_call>")
    assert bool(parsed) == ("<tool_call>" in text)
    assert sum(not call.fault for call in parsed) <= most
    for call in parsed:
        if call.fault:
            assert render_fault(call).startswith("error: ")


TRACEBACK = """Traceback (most recent call last):
  File "<snippet>", line 3, in <module>
  File "<snippet>", line 1, in f
ZeroDivisionError: division by zero
"""
SYNTAX = """  File "<snippet>", line 1
    print(12
         ^
SyntaxError: '(' was never closed
"""
CHAINED = (
    TRACEBACK
    + "\nDuring handling of the above exception, another exception occurred:\n\n"
    + TRACEBACK.replace("line 1, in f", "line 9, in g").replace(
        "ZeroDivisionError: division by zero", "ValueError: first\nsecond line"
    )
)

RESULTS = [
    ({"status": "ok", "stdout": "204\n"}, "204"),
    ({"status": "ok", "stdout": "1\n", "stderr": "warning\n"}, "1\nwarning"),
    ({"status": "ok"}, "(no output)"),
    ({"status": "ok", "stdout": "  abs error = 1e-9\n"}, "abs error = 1e-9"),
    ({"status": "error", "stderr": TRACEBACK}, "error: line 1: ZeroDivisionError: division by zero"),
    ({"status": "error", "stderr": SYNTAX}, "error: line 1: SyntaxError: '(' was never closed"),
    ({"status": "error", "stderr": CHAINED}, "error: line 9: ValueError: first"),
    ({"status": "error", "stderr": "ValueError: x", "stdout": "7\n"}, "error: ValueError: x\noutput before it:\n7"),
    ({"status": "error", "stderr": "bad input\n", "exit_code": 2}, "error: bad input"),
    ({"status": "error", "exit_code": 3}, "error: exit code 3"),
    ({"status": "error"}, "error: failed"),
    ({"status": "timeout", "wall_seconds": 4.0}, "error: timed out after 4 s"),
    ({"status": "timeout", "wall_seconds": 0.5}, "error: timed out after 0.5 s"),
    ({"status": "memory"}, "error: out of memory"),
    ({"status": "output_limit"}, "error: too much output"),
    ({"status": "killed"}, "error: killed"),
    ({"status": "invalid", "stderr": "code is too long"}, "error: invalid tool call: code is too long"),
    ({"status": "malformed", "detail": "no name"}, "error: invalid tool call: no name"),
    ({"status": "unknown_tool", "name": "x"}, "error: unknown tool 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "expected"), RESULTS)
def test_render_result_text_per_status(result: dict, expected: str) -> None:
    """Each status has a fixed text."""
    assert render_result(**result) == expected


def test_render_result_internal_status_raises() -> None:
    """An infrastructure failure has no text for the model."""
    with pytest.raises(ValueError, match="infrastructure"):
        render_result(status="internal")
