"""Tool calls in the forms of model families: written, read back, and malformed ones with their fault."""

from __future__ import annotations

import itertools
import json
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.tools.call_form import FORMS, family_section, parser_of_template
from rstar2_train.tools.parser import ParsedCall, call_spans, parse_calls, write_calls, written_calls
from rstar2_train.tools.schema import TOOL_NAME, TOOLS
from rstar2_train.tools.toolset import builtin_toolset
from tests.support import chat_templates

PARSERS: Any = ["hermes", *FORMS]
NAMES = st.text(string.ascii_letters, min_size=1, max_size=4).map(lambda name: f"f{name}")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab'\"{", max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
PIECES = [
    *"[](){},;\"'1\n\x00\\é",
    '{"name":',
    "f(",
    "a=",
    "```tool_code\n",
    "```",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
]
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=3)


def _parse(text: str, parser: Any, *, most: int = 8) -> list[ParsedCall]:
    return parse_calls(text, max_calls=most, tools=replace(builtin_toolset(), parser=parser))


@pytest.mark.parametrize("parser", PARSERS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(calls=CALLS, before=st.sampled_from(["", "I compute.\n", "a [b] {c}\n\n"]))
def test_write_calls_are_read_back(parser: Any, calls: list[tuple[str, dict[str, Any]]], before: str) -> None:
    """Any calls are the same after writing and reading, behind other text too; their spans cover the written text."""
    text = write_calls(calls, parser)
    assert written_calls(before + text, parser) == [(name, json.loads(json.dumps(given))) for name, given in calls]
    spans = call_spans(before + text, parser)
    assert (spans[0][0], spans[-1][1]) == (len(before), len(before) + len(text))


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("llama3_json", '{"name": "X", "parameters": {"code": "print(1)\\n", "input": ""}}'),
        ("llama3_json", '<|python_tag|>{"type": "function", "name": "X", "parameters": {"code": "print(1)\\n"}}'),
        ("llama3_json", 'Let me see: {"a": 1}\n\n {"name": "X", "arguments": {"code": "print(1)\\n"}}'),
        ("pythonic", '[X(code="print(1)\\n")]'),
        ("pythonic", "I compute [1].\n<|python_start|>[ X(code='print(1)\\n', input='') ]<|python_end|>"),
        ("mistral", '[TOOL_CALLS][{"name": "X", "arguments": {"code": "print(1)\\n"}}]'),
        ("mistral", 'Sure.[TOOL_CALLS] X[ARGS]{"code": "print(1)\\n"}'),
        ("gemma", '```tool_code\nX(code="print(1)\\n")\n```'),
        ("gemma", 'I compute.\n```tool_code\n\nX(code="print(1)\\n", input="")\n\n```\nand wait'),
    ],
)
def test_parse_calls_reads_the_form_of_a_family(parser: Any, text: str) -> None:
    """The forms that the models of a family write."""
    assert _parse(text.replace("X", TOOL_NAME), parser) == [ParsedCall(name=TOOL_NAME, code="print(1)\n")]
    assert _parse(text.replace("X", "search"), parser)[0].fault == "unknown_tool"


def test_parse_calls_reads_several_calls_of_a_family() -> None:
    """Several calls of a turn, in order."""
    two = [(TOOL_NAME, {"code": "1"}), (TOOL_NAME, {"code": "2"})]
    for parser in FORMS:
        assert [call.code for call in _parse(write_calls(two, parser), parser)] == ["1", "2"]
    assert [
        call.code for call in _parse(write_calls([two[0]], "gemma") + "\n" + write_calls([two[1]], "gemma"), "gemma")
    ] == ["1", "2"]


@pytest.mark.parametrize(
    ("parser", "text", "detail"),
    [
        ("llama3_json", '{"name": "X", "parameters": {', "not valid JSON"),
        ("llama3_json", '{"name": "X"}', '"arguments" is missing'),
        ("llama3_json", '{"name": "X", "parameters": []}', '"arguments" must be an object'),
        ("llama3_json", '{"name": "X", "parameters": {"a": 1}}', "unknown argument 'a'"),
        ("pythonic", "[X(code='1'", "no closing bracket"),
        ("pythonic", "[X('1')]", "every argument needs a name"),
        ("pythonic", "[X(code=open('/etc/passwd'))]", "not a call with named literals"),
        ("pythonic", "[X(code={1, 2})]", "not a call with named literals"),
        ("pythonic", "[X(**{'code': '1'})]", "every argument needs a name"),
        ("pythonic", f"[X(code={'(' * 5000}{')' * 5000})]", "not a call with named literals"),
        ("mistral", "[TOOL_CALLS]{}", "not a list of calls"),
        ("mistral", "[TOOL_CALLS][1]", "not a JSON object"),
        ("mistral", "[TOOL_CALLS]X[ARGS]{", "not valid JSON"),
        ("mistral", "[TOOL_CALLS]", "not valid JSON"),
        ("gemma", "```tool_code\nX(code='1')", "no closing ```"),
        ("gemma", "```tool_code\nX(code='1'\n```", "not a call with named literals"),
        ("gemma", "```tool_code\n```", "no call"),
        ("gemma", "```tool_code\nx = 1\n```", "every argument needs a name"),
    ],
)
def test_parse_calls_malformed_call_of_a_family_is_a_fault(parser: Any, text: str, detail: str) -> None:
    """A malformed call has its fault in words, and calls after it are read."""
    good = write_calls([(TOOL_NAME, {"code": "2"})], parser)
    bad, *others = _parse(f"{text.replace('X', TOOL_NAME)}\n\n{good}", parser)
    assert bad.fault == "malformed" and detail in bad.detail
    assert all(start < end for start, end in call_spans(text, parser))
    if "closing" not in detail:
        assert [call.code for call in others] == ["2"]


@pytest.mark.parametrize("parser", FORMS)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(pieces=st.lists(st.sampled_from(
    PIECES), max_size=40))  # fmt: skip
def test_parse_calls_accepts_any_text_of_a_family(parser: Any, pieces: list[str]) -> None:
    """No text raises; the calls are bounded, and the spans are in order and inside the text."""
    text = "".join(pieces)
    parsed = _parse(text, parser, most=3)
    assert len(parsed) <= 6
    spans = call_spans(text, parser)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


def test_parser_of_template_selects_the_family() -> None:
    """The chat template selects the form; Hermes, as in the paper, if it shows none."""
    templates = {
        "hermes": [chat_templates.CHATML, chat_templates.QWEN3, chat_templates.QWEN35, chat_templates.DEEPSEEK_R1],
        "llama3_json": ["{{ '<|start_header_id|>ipython<|end_header_id|>' }}"],
        "mistral": ["{{ '[TOOL_CALLS] [' }}"],
        "gemma": [chat_templates.GEMMA2],
        "pythonic": ["{{ '[func_name1(params_name1=params_value1)] <|python_tag|>' }}"],
    }
    for parser, texts in templates.items():
        assert {parser_of_template(text) for text in texts} == {parser}


def test_family_section_shows_a_call_that_is_read() -> None:
    """The section of the prompt has the signatures and a call in the form, with the same end as that of Hermes."""
    for parser in FORMS:
        section = replace(builtin_toolset(), parser=parser).section()
        assert section == family_section([TOOLS[TOOL_NAME]], parser) and json.dumps(TOOLS[TOOL_NAME]) in section
        assert section.endswith("the output comes back between <tool_response> and </tool_response>.")
    with pytest.raises(ValueError, match="must be Python names"):
        write_calls([("hotel search", {})], "pythonic")
