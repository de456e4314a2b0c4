"""Tools of a job: built-in tools and users' functions, their signatures and the check of arguments."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.tasks import ToolSpec
from rstar2_train.tools.parser import ParsedCall, parse_calls
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.schema import JUPYTER, TOOL_NAME, TOOLS, tools_section
from rstar2_train.tools.toolset import MAX_RETURNED_BYTES, Toolset, builtin_toolset, load_toolset

SOURCE = '''
from __future__ import annotations
from typing import Annotated, Literal

def query(
    sql: str, limit: int = 5, kind: Literal["rows", "count"] = "rows", ids: list[int] | None = None,
    unit: Annotated[str, "Unit of the result."] = "",
) -> str:
    """Runs a query.

    Args:
        sql: One SELECT
            statement.
    """
    if sql == "fail":
        raise ValueError("no such\\ntable")
    return {"sql": sql, "limit": limit} if sql == "json" else open("a.txt").read()
'''


@pytest.fixture
def toolset(tmp_path: Path) -> Toolset:
    """Return a user's function and the Python tool."""
    (tmp_path / "store.py").write_text(SOURCE)
    specs = [ToolSpec(name="query", source=str(tmp_path / "store.py"), timeout_seconds=9), ToolSpec(name=TOOL_NAME)]
    return load_toolset(specs)


def call(arguments: str, name: str = "query") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_signature_has_types_and_docstring(toolset: Toolset) -> None:
    """Type hints become a JSON schema; the docstring describes the function and its arguments."""
    function = toolset.by_name["query"].signature["function"]
    assert (function["name"], function["description"]) == ("query", "Runs a query.")
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "sql": {"type": "string", "description": "One SELECT statement."},
            "limit": {"type": "integer"},
            "kind": {"enum": ["rows", "count"]},
            "ids": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
            "unit": {"type": "string", "description": "Unit of the result."},
        },
        "required": ["sql"],
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(a):\n    'Doc.'", "f.py:1: f: parameter 'a' has no type hint"),
        ("def f(a: bytes):\n    'Doc.'", "the type hint `bytes` has no JSON form"),
        ("def f(*a: int):\n    'Doc.'", r"\*args, \*\*kwargs"),
        ("def f(a: int): ...", "has no docstring"),
        ("def g(a: int): ...", "no function 'f'"),
        ("def f(:", "not valid Python"),
        ("raise SystemExit('never imported')\ndef f(a: int): ...", "has no docstring"),
    ],
)
def test_load_toolset_unusable_source_is_named(tmp_path: Path, source: str, message: str) -> None:
    """A function without a JSON form is rejected with its file; the file is never imported."""
    (tmp_path / "f.py").write_text(source)
    with pytest.raises(SourceError, match=message):
        load_toolset([ToolSpec(name="f", source=str(tmp_path / "f.py"))])


def test_load_toolset_reads_packages(tmp_path: Path) -> None:
    """The function of a package may be in any of its modules."""
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "__init__.py").write_text("from kit.inner import f\n")
    (tmp_path / "kit" / "inner.py").write_text("def f(a: int) -> int:\n    'Adds one.'\n    return a + 1\n")
    assert list(load_toolset([ToolSpec(name="f", source=str(tmp_path / "kit"))]).by_name) == ["f"]
    (tmp_path / "kit" / "__init__.py").unlink()
    with pytest.raises(SourceError, match=r"needs a file __init__\.py"):
        load_toolset([ToolSpec(name="f", source=str(tmp_path / "kit"))])


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ("{}", "'sql' is a required property"),
        ('{"sql": 1}', "\"sql\": 1 is not of type 'string'"),
        ('{"sql": "x", "limit": "7"}', "\"limit\": '7' is not of type 'integer'"),
        ('{"sql": "x", "limit": true}', "\"limit\": True is not of type 'integer'"),
        ('{"sql": "x", "top": 1}', "Additional properties are not allowed ('top' was unexpected)"),
        ('{"sql": "x", "kind": "all"}', "\"kind\": 'all' is not one of ['rows', 'count']"),
        ('{"sql": "x", "ids": NaN}', None),
        ('{"sql": "\\ud800"}', "an argument holds half a surrogate pair"),
    ],
)
def test_parse_calls_checks_arguments_by_schema(toolset: Toolset, arguments: str, detail: str | None) -> None:
    """Wrong arguments are a fault of the call. Nothing is converted, no unknown argument is ignored."""
    (parsed,) = parse_calls(call(arguments), max_calls=1, tools=toolset)
    assert (parsed.fault, parsed.name) == ("malformed", "query")
    assert detail is None or parsed.detail == detail


def test_parse_calls_reads_each_tool(toolset: Toolset) -> None:
    """A function's call has its arguments as JSON, a program's call its code; other names are unknown."""
    text = call('{"sql": "SELECT 1"}') + call('{"code": "1"}', TOOL_NAME) + call('{"code": "1"}', JUPYTER)
    parsed = parse_calls(text, max_calls=3, tools=toolset)
    assert parsed == [
        ParsedCall(name="query", code='{"sql": "SELECT 1"}'),
        ParsedCall(name=TOOL_NAME, code="1"),
        ParsedCall(name=JUPYTER, fault="unknown_tool"),
    ]


def test_select_limits_the_tools_of_a_row(toolset: Toolset) -> None:
    """A tool that the row does not allow is unknown, and its signature is not in the prompt."""
    only = toolset.select(["query"])
    assert TOOL_NAME not in only.section() and "query" in only.section()
    assert parse_calls(call('{"code": "1"}', TOOL_NAME), max_calls=1, tools=only)[0].fault == "unknown_tool"
    assert toolset.select(None) is toolset and toolset.select([]).section() == ""
    with pytest.raises(ValueError, match=f"unknown tool 'other'; the job has query, {TOOL_NAME}"):
        toolset.select(["other"])


def test_builtin_toolset_keeps_the_paper_form() -> None:
    """A job without spec.tools has the prompt of one built-in tool, character by character."""
    assert builtin_toolset().section() == tools_section([TOOLS[TOOL_NAME]])
    assert load_toolset([], JUPYTER).section() == tools_section([TOOLS[JUPYTER]])


def test_limits_of_a_tool_replace_those_of_the_job(toolset: Toolset) -> None:
    """A tool without limits has those of the job."""
    job = JudgeLimits(wall_seconds=2, memory_mib=64)
    assert toolset.by_name["query"].limits(job) == JudgeLimits(
        wall_seconds=9, memory_mib=64, file_bytes=MAX_RETURNED_BYTES
    )
    assert toolset.by_name[TOOL_NAME].limits(job) == job.model_copy(update={"file_bytes": MAX_RETURNED_BYTES})


@pytest.mark.parametrize(
    ("sql", "output", "error"),
    [
        ("json", '{"sql": "json", "limit": 5}\n', ""),
        ("x", "content\n", ""),
        ("fail", "", "ValueError: no such table\n"),
    ],
)
def test_program_calls_the_function(toolset: Toolset, tmp_path: Path, sql: str, output: str, error: str) -> None:
    """The program prints text unchanged and other values as JSON; an exception is one line."""
    code, stdin = toolset.by_name["query"].snippet(json.dumps({"sql": sql}), "", {"a.txt": b"content"})
    code = code.replace('Path("/tmp")', f"Path({str(tmp_path)!r})")
    process = subprocess.run([sys.executable, "-c", code], input=stdin, capture_output=True, text=True, check=False)
    assert (process.stdout, process.stderr, process.returncode) == (output, error, int(bool(error)))


def test_toolset_copy_of_a_worker_checks_the_same(toolset: Toolset) -> None:
    """A rollout worker gets the tools as a pickle."""
    copy: Toolset = pickle.loads(pickle.dumps(toolset))
    assert copy.section() == toolset.section()
    for text in (call('{"sql": "a"}'), call('{"sql": 1}'), call('{"code": "1", "other": 2}', TOOL_NAME)):
        assert parse_calls(text, max_calls=2, tools=copy) == parse_calls(text, max_calls=2, tools=toolset)
