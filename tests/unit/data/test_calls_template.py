"""The checker of the template `calls`: verdicts of BFCL's rules, by hand. `bench.bfcl` compares with bfcl-eval."""

import json
from typing import Any

import pytest

from bench.bfcl import load_checker

CHECKER = load_checker()
LONG = "1" * 5000
"""More digits than Python converts to an integer."""


def reward(language: str, kind: str, allowed: list[Any], given: Any, items: str | None = None) -> float:
    """Return the reward of one call of `f` with one argument."""
    schema = {"type": kind} | ({"items": {"type": items}} if items else {})
    function = {"name": "a.f", "parameters": {"properties": {"x": schema}, "required": ["x"]}}
    data = {"kind": "simple", "language": language, "functions": [function], "calls": [{"a.f": {"x": allowed}}]}
    call = {"name": "a_f", "code": json.dumps({"x": given}), "status": "ok"}
    score, _ = CHECKER.score({"data": data}, None, {"calls": [call]})
    return float(score)


@pytest.mark.parametrize(
    ("kind", "items", "allowed", "right", "wrong"),
    [
        ("integer", None, 3, "3", ("3L", "3.0", "4", 3, "", LONG)),
        ("long", None, 42, "42L", ("42", "43L")),
        ("float", None, 1.5, "1.5f", ("1.5", "1.5d")),
        ("double", None, 0.5, "5e-1", ("0.5f", ".5")),
        ("boolean", None, True, "true", ("True", "false", "1")),
        ("String", None, "Ab c", "abc", ('"Ab c"', "abd")),
        ("any", None, "mapArea", "mapArea", ("map", 1)),
        ("integer", None, "ResultSet.CLOSE", "ResultSet.CLOSE", ("resultset.close", "1")),
        ("Array", "integer", [2, 7], "new int[]{2, 7}", ("new int[]{7, 2}", "[2, 7]", "new int[]{2.0, 7}")),
        ("Array", "String", ["a"], "new String[] {a}", ('new String[]{"a"}', "new String[]{}")),
        ("ArrayList", "integer", [1, 2], "new ArrayList<>(Arrays.asList(1, 2))", ("Arrays.asList(1, 2)", "[1, 2]")),
        ("ArrayList", "long", [1, 2], "new ArrayList<Long>() {{ add(1L); add(2L); }}", ("new ArrayList<>()",)),
        ("ArrayList", "String", ["a b"], 'new ArrayList<String>() {{ add("a b"); }}', ('new ArrayList<>("a b")',)),
        ("ArrayList", "String", [], "new ArrayList<>()", ("", "new ArrayList<>(Arrays.asList(1))")),
        ("HashMap", None, {"a": [1]}, 'new HashMap<String, Integer>() {{ put("a", 1); }}', ("new HashMap<>()", "{}")),
        ("HashMap", None, {"a": ["", "x"]}, "new HashMap<>()", ('new HashMap<>(){{put("b", "x");}}', "{a=x}")),
        ("HashMap", None, "userProfile", "userProfile", ("new HashMap<>()",)),
    ],
)
def test_java_arguments(kind: str, items: str | None, allowed: Any, right: str, wrong: tuple[Any, ...]) -> None:
    """A source text has the wanted value only in the form of its type."""
    assert reward("java", kind, [allowed], right, items) == 1.0
    assert [text for text in wrong if reward("java", kind, [allowed], text, items)] == []


@pytest.mark.parametrize(
    ("kind", "items", "allowed", "right", "wrong"),
    [
        ("integer", None, 3, "3", ("3.0", "3n", 3, LONG)),
        ("float", None, 4.0, "4", ("4f", "4.5")),
        ("Bigint", None, 7, "7n", ("7",)),
        ("Boolean", None, False, "false", ("False", "true")),
        ("String", None, "utf-8", "'UTF8'", ('"utf-16"', "'utf-8")),
        ("any", None, "listElement", "listElement", ("'listElement", "list")),
        ("array", "String", ["a", "b"], "['a', \"b\"]", ("['a']", "a, b", "[['a', 'b']]")),
        ("array", "integer", [3, 1], "new Array(3, 1)", ("[1, 3]", "['3', '1']")),
        ("array", "array", [[1, 2], [3]], "[\n [1, 2],\n [3]\n]", ("[[1, 2]]", "[1, 2, 3]")),
        ("array", "String", [], "[]", ("['']", "")),
        ("dict", None, {"a": ["x"], "b": [[1, True]]}, "{a: 'x', \"b\": [1, true]}", ("{a: 'x'}", "{a: 'x', b: 1}")),
        ("dict", None, {}, "{}", ("{a: 1}", "new Map()")),
    ],
)
def test_javascript_arguments(kind: str, items: str | None, allowed: Any, right: str, wrong: tuple[Any, ...]) -> None:
    """A source text has the wanted value only in the form of its type."""
    assert reward("javascript", kind, [allowed], right, items) == 1.0
    assert [text for text in wrong if reward("javascript", kind, [allowed], text, items)] == []


def test_python_arguments_are_not_read_as_source() -> None:
    """A JSON value is compared as it is; an integer is a float."""
    assert [reward("python", "float", [4.0], given) for given in (4, 4.0, "4", 5)] == [1, 1, 0, 0]
    assert [reward("python", "array", [[1]], given, "integer") for given in ([1], "[1]")] == [1, 0]
