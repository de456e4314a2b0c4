"""The reader of demonstrations: each field of a message is read, or refused with row, field and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.data.demonstrations import Demonstration, read_demonstrations
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import DatasetSource, prepare
from rstar2_train.data.readers import DataError
from rstar2_train.tools.schema import call_text

DEMO = {
    "messages": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<answer>\\boxed{2}</answer>"},
    ],
    "level": 1,
}
USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "2"}
CALL = {"type": "function", "function": {"name": "run", "arguments": '{"code": "print(2)"}'}}
READ_CALL = {"type": "function", "function": {"name": "run", "arguments": {"code": "print(2)"}}}
EMPTIES = (
    {"tool_calls": [], "annotations": []},
    {"reasoning_content": "", "name": ""},
    {"function_call": {}},
    {"reasoning_content": " \n"},
)
ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}


def _jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _parquet(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "data.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def _read(folder: Path, row: dict[str, Any]) -> Demonstration:
    (read,) = read_demonstrations(_jsonl(folder, row))
    return read


def _calling(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [CALL], **fields}


def _prepared(folder: Path, path: Path) -> list[list[dict[str, Any]]]:
    """Return the messages that `rstar2 data prepare conversations=PATH` writes."""
    file = prepare([DatasetSource(LAYOUTS["conversations"], (path,))], out=folder / "out").file
    return [json.loads(line)["messages"] for line in file.read_text(encoding="utf-8").splitlines()]


def test_read_demonstrations_keeps_plain_messages(tmp_path: Path) -> None:
    """Messages of role and content are unchanged, also those of a Parquet file with null fields of other rows."""
    row = _read(tmp_path, DEMO)
    assert (list(row.messages), row.level) == (DEMO["messages"], 1)
    with_call = {"messages": [USER, _calling(), {"role": "tool", "content": "2", "name": "run"}, ANSWER]}
    plain, calling = read_demonstrations(_parquet(tmp_path, DEMO, with_call))
    assert list(plain.messages) == DEMO["messages"] and plain.level == 1
    assert list(calling.messages) == [
        USER, {"role": "assistant", "content": "", "tool_calls": [READ_CALL]}, {"role": "tool", "content": "2"}, ANSWER,
    ]  # fmt: skip
    assert calling.level == 0


@pytest.mark.parametrize(
    ("message", "read"),
    [
        ({"content": None, "tool_calls": [CALL]}, {"content": "", "tool_calls": [READ_CALL]}),
        (
            {"content": "I compute.", "tool_calls": [CALL | {"id": "a", "index": 0}]},
            {"content": "I compute.", "tool_calls": [READ_CALL]},
        ),
        (
            {"content": "", "tool_calls": [{"name": "run", "arguments": {"code": "print(2)"}}]},
            {"content": "", "tool_calls": [READ_CALL]},
        ),
        ({"content": "", "tool_calls": [CALL | {"id": ""}] * 2}, {"content": "", "tool_calls": [READ_CALL] * 2}),
        ({"content": "b", "reasoning_content": "because"}, {"content": "b", "reasoning_content": "because"}),
        ({"content": [{"type": "text", "text": "b"}]}, {"content": "b"}),
        ({"content": "b", "name": None, "refusal": None, "function_call": None}, {"content": "b"}),
        *(({"content": "b", **empty}, {"content": "b", **empty}) for empty in EMPTIES),
        ({"content": "b", "weight": 1}, {"content": "b"}),
        (
            {"content": "", "tool_calls": [{"name": "run", "arguments": '{"x": 0.30000000000000004}'}]},
            {
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "run", "arguments": {"x": 0.1 + 0.2}}}],
            },
        ),
    ],
)
def test_read_demonstrations_reads_each_field(tmp_path: Path, message: dict[str, Any], read: dict[str, Any]) -> None:
    """Calls, reasoning, null contents and text parts have one form; a null field is an absent one, and fields with
    an empty value stay for the chat template.
    """
    row = _read(tmp_path, {"messages": [USER, {"role": "assistant"} | message]})
    assert list(row.messages) == [USER, {"role": "assistant"} | read]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages must be a non-empty list"),
        ([], "messages must be a non-empty list"),
        (["hello"], "messages[0] must be an object"),
        ([{"role": "bot", "content": "x"}], "messages[0].role is 'bot'; allowed: system, user, assistant, tool"),
        ([{"role": "developer", "content": "x"}], "write system for developer"),
        ([{"role": "User", "content": "x"}], "allowed: system, user, assistant, tool; write user for User"),
        ([{"role": "gpt", "content": "x"}], "write assistant for gpt"),
        ([USER, {"role": "function", "name": "f", "content": "x"}], "write tool for function"),
        ([{"from": "human", "value": "x"}], "rename from to role, and value to content"),
        ([{"role": "user"}], "messages[0].content must be a text"),
        ([USER], "no assistant message"),
        ([USER, ANSWER | {"weight": 0}], "only assistant messages of weight 0"),
        ([USER, ANSWER | {"weight": 0.5}], "messages[1].weight must be 0 or 1, got 0.5"),
        ([USER, ANSWER | {"weight": True}], "messages[1].weight must be 0 or 1, got True"),
        ([USER | {"weight": 1}, ANSWER], "messages[0].weight is not trained on: only assistant messages are trained"),
        ([ANSWER], "messages[0]: an assistant message needs a user message before it"),
        ([{"role": "system", "content": "s"}, ANSWER], "messages[1]: an assistant message needs a user message"),
        ([USER, ANSWER, ANSWER], "messages[2]: the message before it is also an assistant message: join the two"),
        ([USER, {"role": "tool", "content": "x"}, ANSWER], "messages[1]: a tool message must follow an assistant"),
        ([USER, {"role": "assistant", "content": " "}], "messages[1].content is empty"),
        ([USER, {"role": "assistant", "content": None}], "messages[1].content is empty"),
        (
            [USER, ANSWER | {"function_call": {"name": "f", "arguments": "{}"}}],
            "messages[1].function_call is not trained on: write the call as",
        ),
        ([USER, ANSWER | {"name": "bob"}], "messages[1].name is not trained on: write the name in the content"),
        ([USER | {"name": "bob"}, ANSWER], "messages[0].name is not trained on"),
        (
            [USER, ANSWER | {"reasoning": "r"}],
            "messages[1].reasoning is not trained on: rename it to reasoning_content",
        ),
        ([USER, ANSWER | {"tool_calls": ""}], "messages[1].tool_calls must be a list of calls, got ''"),
        ([USER, ANSWER | {"prefix": False}], "messages[1].prefix is not trained on: remove it"),
        ([USER, ANSWER | {"train": False}], "messages[1].train is not trained on: write weight: 0"),
        ([USER, ANSWER | {"images": [1]}], "messages[1].images is not trained on: remove it"),
        ([USER | {"tool_calls": [CALL]}, ANSWER], "messages[0].tool_calls is not trained on: only assistant messages"),
        ([USER, ANSWER | {"reasoning_content": 3}], "messages[1].reasoning_content must be a text, got 3"),
        ([USER, ANSWER | {"content": [{"type": "text", "text": "a"}] * 2}], "join several texts"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, ANSWER],
            "messages[0].content must be a text, or a list of one part",
        ),
        ([USER, ANSWER | {"content": 2}], "messages[1].content must be a text, got 2"),
        ([USER, ANSWER | {"content": "\ud800"}], "messages[1].content contains '\\ud800'"),
        (
            [USER, _calling(tool_calls=[{"function": {"name": "f", "arguments": "{"}}])],
            "messages[1].tool_calls[0].function.arguments is not valid JSON",
        ),
        (
            [USER, _calling(tool_calls=[{"function": {"name": "f", "arguments": "[1]"}}])],
            "must be a JSON object, got [1]",
        ),
        (
            [USER, _calling(tool_calls=[{"function": {"arguments": "{}"}}])],
            "messages[1].tool_calls[0].function.name must be",
        ),
        (
            [USER, _calling(tool_calls=[{"function": {"name": "f", "arguments": {}, "index": 5}}])],
            "messages[1].tool_calls[0].function.index is not trained on: remove it",
        ),
        (
            [USER, _calling(tool_calls=[{"function": {"name": "f", "arguments": {}, "function": {"name": "g"}}}])],
            "messages[1].tool_calls[0].function.function is not trained on: remove it",
        ),
        (
            [USER, _calling(tool_calls=[CALL | {"arguments": {"z": 1}}])],
            "messages[1].tool_calls[0].arguments is set outside of function too: remove one of them",
        ),
        (
            [USER, _calling(tool_calls=[CALL | {"name": "other"}])],
            "messages[1].tool_calls[0].name is set outside of function",
        ),
        (
            [USER, _calling(tool_calls=[{"function": {"name": "f", "arguments": '{"x": 1, "x": 2}'}}])],
            "function.arguments: an object has the key 'x' twice; keep one",
        ),
        (
            [USER, _calling(tool_calls=[{"function": {"name": "f", "arguments": '{"x": NaN}'}}])],
            "messages[1].tool_calls[0].function.arguments.x is nan",
        ),
        (
            [USER, _calling(tool_calls=[{"function": {"name": "f", "arguments": '{"x": [0.1234567890123456789]}'}}])],
            "arguments.x[0] is 0.1234567890123456789, which a double rounds to 0.12345678901234568: write that number",
        ),
        (
            [USER, ANSWER | {"reasoning_content": "<think>\nr\n</think>"}],
            "messages[1].reasoning_content contains <think>, but the chat template writes the tags",
        ),
        ([USER, ANSWER | {"reasoning_content": "r</think>s"}], "messages[1].reasoning_content contains </think>"),
        (
            [USER, {"role": "assistant", "content": "<think>s</think>a", "reasoning_content": "r"}],
            "messages[1].content contains <think>, but",
        ),
        ([USER, {"role": "assistant", "content": "so \boxed{5}"}], "content contains '\\x08', a control character"),
        ([USER | {"content": "\frac12"}, ANSWER], "messages[0].content contains '\\x0c'"),
        (
            [USER, _calling(tool_calls=[CALL | {"index": 1}, CALL | {"index": 0}])],
            "messages[1].tool_calls have the indexes [1, 0]: sort the calls and results, or remove index",
        ),
        ([USER, _calling(tool_calls=["f"])], "messages[1].tool_calls[0] must be an object"),
        ([USER, _calling(tool_calls={"a": 1})], "messages[1].tool_calls must be a list of calls"),
        ([USER, _calling(tool_calls=[CALL | {"type": "custom"}])], "messages[1].tool_calls[0].type is 'custom'"),
        ([USER, _calling(tool_calls=[CALL | {"seconds": 3}])], "messages[1].tool_calls[0].seconds is not trained on"),
        ([USER, _calling(), ANSWER], "messages[1].tool_calls has 1 calls, but 0 messages of role tool follow"),
        ([USER, _calling(), USER, ANSWER], "messages[1].tool_calls has 1 calls, but 0 messages of role tool follow"),
        (
            [USER, _calling(tool_calls=[CALL] * 2), {"role": "tool", "content": "1"}, ANSWER],
            "has 2 calls, but 1 messages",
        ),
        (
            [USER, _calling(), {"role": "tool", "content": "1", "name": "f"}, ANSWER],
            "messages[2].name is 'f', but the call of this position has 'run'",
        ),
        (
            [USER, _calling(tool_calls=[CALL | {"id": "a"}]), {"role": "tool", "content": "1", "tool_call_id": "b"}],
            "messages[2].tool_call_id is 'b', but the call of this position has 'a'",
        ),
        (
            [USER, _calling(tool_calls=[CALL | {"id": "a"}] * 2), *[{"role": "tool", "content": "1"}] * 2, ANSWER],
            "messages[1].tool_calls has the id 'a' twice; give each call an id of its own",
        ),
        (
            [USER, ANSWER, {"role": "tool", "content": "1", "name": "f"}, ANSWER],
            "messages[2].name is not trained on: no tool_calls are before it",
        ),
    ],
)
def test_read_demonstrations_refuses_with_row_and_field(tmp_path: Path, messages: Any, message: str) -> None:
    """A row that cannot be trained whole is refused: file, line, field and remedy."""
    path = _jsonl(tmp_path, DEMO, {"messages": messages})
    with pytest.raises(DataError) as caught:
        list(read_demonstrations(path))
    assert str(caught.value).startswith(f"{path}:2: ") and message in str(caught.value)


def test_read_demonstrations_accepts_fields_without_effect(tmp_path: Path) -> None:
    """Empty fields, gaps of pandas and columns of other programs change no conversation."""
    row = {
        "weight": 1.0,
        "images": [],
        "documents": None,
        "enable_thinking": None,
        "system": float("nan"),
        "tools": float("nan"),
        "source": "x",
        "label": True,
        "reward": 0.5,
        "prompt": "1+1?\n",
        "completion": float("nan"),
        "question": "1+1?",
        "context": "",
        "history": [],
        "keep": True,
        "response": "",
        "reasoning": "off",
        "resolved": "Yes",
        "is_valid": 1.0,
    }
    assert list(_read(tmp_path, DEMO | row).messages) == DEMO["messages"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"functions": [ADD]}, "functions is not trained on: rename it to tools"),
        ({"Tools": [ADD]}, "'Tools' is not read: rename it to 'tools'"),
        ({"tool": [ADD]}, "tool is not trained on: rename it to tools"),
        ({"completion_mask": [0, 1]}, "completion_mask is not trained on: write weight: 0"),
        ({"system": "Be brief."}, "system is not trained on: write it as the first message"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs is not trained on"),
        ({"chat_template": "x"}, "chat_template is not trained on: set spec.model.chatTemplate"),
        ({"system_instruction": "x"}, "system_instruction is not trained on: write it as the first message"),
        ({"developer": "x"}, "developer is not trained on: write it as the first message"),
        ({"tool_definitions": [1]}, "tool_definitions is not trained on: rename it to tools"),
        ({"train_on_inputs": True}, "train_on_inputs is not trained on: write weight: 0"),
        ({"mask": [1]}, "mask is not trained on: write weight: 0"),
        ({"rejected_messages": [1]}, "rejected_messages is not trained on: preferences"),
        ({"enable_thinking": False}, "enable_thinking is not trained on: set spec.model.chatTemplate"),
        ({"system_prompt": "Be brief."}, "system_prompt is not trained on: write it as the first message"),
        ({"documents": [{"text": "x"}]}, "documents is not trained on: write them in the content"),
        ({"images": ["a.png"]}, "images is not trained on: models are trained on text only"),
        ({"Images": ["a.png"]}, "Images is not trained on: models are trained on text only"),
        ({"rejected_response": "no"}, "rejected_response is not trained on: preferences"),
        ({"resolved": False}, "resolved is not trained on: remove the row, because"),
        ({"reward": 0.0}, "reward is not trained on: remove the row, because"),
        ({"conversations": [{"from": "human", "value": "q"}]}, "conversations is not trained on: write the"),
        ({"prompt": [USER]}, "prompt is not trained on, and is in no message: write it in one"),
        ({"prompt": "Be brief."}, "prompt is not trained on, and is in no message"),
        ({"Response": "3"}, "Response is not trained on, and is in no message"),
        ({"instruction": "Be brief."}, "instruction is not trained on, and is in no message"),
        ({"context": "A text."}, "context is not trained on, and is in no message"),
        ({"history": [["a", "b"]]}, "history is not trained on, and is in no message"),
        ({"keep": False}, "keep is not trained on: remove the row, because"),
        ({"is_valid": False}, "is_valid is not trained on: remove the row, because"),
        ({"label": False}, "label is not trained on: remove the row, because"),
        *(({"resolved": no}, "resolved is not trained on: remove the row") for no in (0, 0.0, "False", " no", "0")),
        *(({name: "Because."}, f"{name} is not trained on, and is in no message") for name in ("reasoning", "cot")),
        ({"Dialogue": [USER]}, "Dialogue is not trained on: write the conversation once"),
        ({"Messages": [USER]}, "'Messages' is not read: remove one of them"),
        ({"weight": 0}, "weight is not trained on: write weight: 0 for each message"),
        ({"weight": 0.5}, "weight is not trained on"),
        ({"tools": "add"}, "tools must be a list"),
        ({"tools": [ADD | {"description": "\ud800"}]}, "tools contains '\\ud800', half of a surrogate pair"),
        ({"tools": ["add"]}, "tools[0] must be an object"),
        ({"tools": [ADD | {"description": "\frac12"}]}, "tools[0]: function: description contains '\\x0c'"),
        ({"tools": [{"type": "function", "function": ADD | {"strict": True}}]}, "tools[0]: strict is not trained on"),
        ({"tools": [{"function": {"name": "add", "parameters": {"type": "array"}}}]}, "tools[0]: function 'add'"),
        ({"tools": [{"description": "d", "function": ADD}]}, "tools[0].description is set outside of function"),
        ({"tools": [{"type": "custom", **ADD}]}, "tools[0].type is 'custom'; only tools of type function"),
        ({"tools": [ADD, ADD]}, "tools must have different names, got add, add"),
        ({"loss_mask": [0, 1]}, "loss_mask is not trained on: write weight: 0"),
        ({"instructions": "Be brief."}, "instructions is not trained on: write them as the first message"),
        ({"rejected": [USER]}, "rejected is not trained on: preferences are not trained on"),
        ({"level": "easy"}, "level must be a whole number from 1 (easiest), got 'easy'"),
        ({"level": 1.5}, "got 1.5"),
        ({"level": True}, "got True"),
        ({"level": -1}, "got -1"),
        ({"level": float("inf")}, "got inf"),
        ({"level": 2**31}, "got 2147483648"),
    ],
)
def test_read_demonstrations_refuses_fields_of_the_row(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """A field of the row that would change the conversation is refused."""
    with pytest.raises(DataError) as caught:
        _read(tmp_path, DEMO | row)
    assert ":1: " in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize(("level", "expected"), [(None, 0), (0, 0), (1, 1), (1.0, 1), (float("nan"), 0), (3, 3)])
def test_read_demonstrations_reads_levels_of_pandas(tmp_path: Path, level: float | None, expected: int) -> None:
    """A column of integers with gaps holds floats and NaN."""
    assert _read(tmp_path, DEMO | {"level": level}).level == expected


def test_read_demonstrations_reads_an_opening_of_an_environment(tmp_path: Path) -> None:
    """The first observation of an environment follows an empty turn."""
    messages = [USER, {"role": "assistant", "content": ""}, {"role": "tool", "content": "A door."}, ANSWER]
    assert list(_read(tmp_path, {"messages": messages}).messages) == messages


def test_read_demonstrations_reads_tools(tmp_path: Path) -> None:
    """The tools of a row stay signatures; calls of other tools are refused."""
    tools = [{"type": "function", "function": ADD}]
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    turns = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    row = _read(tmp_path, {"messages": turns, "tools": tools})
    assert (list(row.messages), list(row.tools)) == (turns, tools)
    with pytest.raises(DataError, match=r"messages\[1\]\.tool_calls calls 'run', but the tools of the row are add"):
        _read(tmp_path, {"messages": [USER, _calling()], "tools": tools})


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"a": "\x0crac"}, "a"),
        ({"a": {"b": ["x", "\x08oxed"]}}, r"a: b\[1\]"),
        ('{"a": [{"b": "\\frac"}]}', r"a\[0\]: b"),
        ({"a": {"\x0crac": 1}}, "a: a key"),
    ],
)
def test_read_demonstrations_refuses_lost_latex_in_arguments(tmp_path: Path, arguments: Any, place: str) -> None:
    """A control character in place of a LaTeX command, at any depth."""
    turn = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    with pytest.raises(DataError, match=rf"messages\[1\]\.tool_calls: {place} contains .*control character"):
        _read(tmp_path, {"messages": [USER, turn]})


def test_null_fields_of_tools_are_read_as_missing(tmp_path: Path) -> None:
    """A client's dump has null for `strict` and each other field without a value."""
    nulls = {"strict": None, "description": None, "parameters": None}
    tool = {"type": "function", "cache_control": None, "function": nulls | {"name": "add"}}
    empty = {"name": "add", "description": "", "parameters": {"type": "object", "properties": {}}}
    assert list(_read(tmp_path, DEMO | {"tools": [tool]}).tools) == [{"type": "function", "function": empty}]
    assert list(_read(tmp_path, DEMO | {"tools": [ADD | {"strict": None}]}).tools[0]["function"]) == list(ADD)


def test_prepare_conversations_writes_calls_as_text(tmp_path: Path) -> None:
    """`rstar2 data prepare` writes calls as rollouts do; tools, level and weight stay."""
    tools = [{"type": "function", "function": {**ADD, "name": "run"}}]
    results = [{"role": "tool", "content": "2"}]
    row = {
        "messages": [USER, _calling(content="I compute."), *results, ANSWER | {"weight": 0}],
        "tools": tools,
        "level": 2,
    }
    path = _jsonl(
        tmp_path, row, {"messages": [USER, _calling()]}, {"messages": [USER | {"name": ""}, ANSWER | EMPTIES[0]]}
    )
    written = call_text("run", {"code": "print(2)"})
    assert _prepared(tmp_path, path) == [
        [
            USER,
            {"role": "assistant", "content": f"I compute.\n{written}"}, *results, ANSWER | {"weight": 0},
        ],
        [USER, {"role": "assistant", "content": written}],
        [USER | {"name": ""}, ANSWER | EMPTIES[0]],
    ]  # fmt: skip
    file = next((tmp_path / "out").glob("*/conversations.jsonl"))
    assert [(row.level, list(row.tools)) for row in read_demonstrations(file)] == [(2, tools), (0, []), (0, [])]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"content": "b", "reasoning_content": "because"}, "reasoning_content"),
        ({"content": "b", "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({"content": "b", "audio": {"id": 1}}, "audio"),
    ],
)
def test_prepare_conversations_refuses_other_fields(tmp_path: Path, message: dict[str, Any], field: str) -> None:
    """A field that `rstar2 data prepare` cannot write as text is refused with row and field."""
    path = _jsonl(tmp_path, DEMO, {"messages": [USER, {"role": "assistant"} | message]})
    with pytest.raises(DataError, match=rf"data\.jsonl:2: messages\[1\]\.{field} "):
        _prepared(tmp_path, path)
