"""Conversion of the cold start's datasets from their published form to the form of the SFT stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.data.prepare.call_syntax import CallSyntaxError, parse_bracket_calls, parse_glaive_call
from rstar2_train.data.prepare.conversations import _split_results
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.records import RULES, RemovedRow
from rstar2_train.data.readers import DataError
from rstar2_train.data.tiny.policy import write_policy
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.tools.parser import parse_calls
from rstar2_train.tools.schema import TOOL_NAME, TOOLS

SEARCH = {"name": "Hotel Search", "description": "Finds.", "parameters": {"type": "dict", "properties": {
    "city": {"type": "str"}, "stars": {"type": "int"}}, "required": ["city"]}}  # fmt: skip
WEATHER = {"name": "weather", "description": "Reports {it}.", "parameters": {"type": "object", "properties": {}}}
TOOLACE = {
    "system": "You are an expert in composing functions. Here is a list of functions in JSON format that you can "
    f"invoke:\n{json.dumps([SEARCH, WEATHER])}. \nShould you decide to return the function call(s), put it in the "
    "format of [func1(params_name=params_value), func2(params)]",
    "conversations": [
        {"from": "user", "value": "Hotels in Bonn?"},
        {"from": "assistant", "value": "[Hotel Search(city=\"Bonn\", stars=4), weather(days=[1, 2], wet=true)]"},
        {"from": "tool", "value": '[{"name": "Hotel Search", "results": {}}, {"name": "weather", "results": "ü"}]'},
        {"from": "assistant", "value": "None."},
        {"from": "user", "value": "Thanks"},
    ],
}  # fmt: skip
APIGEN = {
    "system": "You are a retail agent.",
    "tools": json.dumps([WEATHER]),
    "conversations": [
        {"from": "human", "value": "Rain?"},
        {"from": "gpt", "value": "I will look."},
        {"from": "function_call", "value": '{"name": "weather", "arguments": {"day": 1}}'},
        {"from": "observation", "value": '{"rain": true}'},
        {"from": "gpt", "value": "Yes."},
    ],
}
GLAIVE = {
    "system": f"SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
    f"{json.dumps(WEATHER, indent=4)}\n",
    "chat": "USER: Rain?\n\n\nASSISTANT: <functioncall> "
    "{\"name\": \"weather\", \"arguments\": '{\"in\": \"Cote d\\'Or\"}'} <|endoftext|>"
    "\n\n\nFUNCTION RESPONSE: {\"rain\": true}\n\n\nASSISTANT: Yes. <|endoftext|>\n\n\n",
}  # fmt: skip
PROGRAM = 'print("hi")\nif 1:\n    pass'
MAGICODER = {"lang": "python", "problem": "Print hi.", "solution": f"Like this:\n```python\n{PROGRAM}\n```\nDone."}
NEMOTRON = {
    "input": [{"role": "user", "content": "Hi"}],
    "output": "Hello.",
    "category": "chat",
    "reasoning": "off",
    "system_prompt": "detailed thinking off",
}
TULU = {"id": "x", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}


def _converted(layout: str, row: dict[str, Any]) -> dict[str, Any]:
    converted = LAYOUTS[layout].convert(row, "f:1")
    assert not isinstance(converted, RemovedRow), converted
    return converted


def _messages(layout: str, row: dict[str, Any]) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = _converted(layout, row)["messages"]
    return messages


def _turns(call: str) -> list[dict[str, str]]:
    """Return the turns of a row of ToolACE with one call."""
    return [{"from": "user", "value": "x"}, {"from": "assistant", "value": f"[{call}]"}]


def _called(arguments: Any) -> dict[str, Any]:
    """Return a row with one call in the form of OpenAI."""
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    }


def _roles(messages: list[dict[str, str]]) -> list[str]:
    return [message["role"] for message in messages]


def _calls(text: str) -> list[dict[str, Any]]:
    """Return the calls of a turn. The parser of rollouts must accept their form; it does not know their tools."""
    parsed = parse_calls(text, max_calls=8)
    assert all(call.fault in ("", "unknown_tool") for call in parsed), parsed
    bodies = [part.split("</tool_call>")[0] for part in text.split("<tool_call>")[1:]]
    assert len(bodies) == len(parsed)
    return [json.loads(body) for body in bodies]


def test_toolace_converts_calls_and_results() -> None:
    """Several calls, their results and the signatures of ToolACE."""
    converted = _converted("toolace", TOOLACE)
    user, call, first, second, answer = converted["messages"]
    assert user == {"role": "user", "content": "Hotels in Bonn?"} and answer["content"] == "None."
    assert _calls(call["content"]) == [
        {"name": "Hotel Search", "arguments": {"city": "Bonn", "stars": 4}},
        {"name": "weather", "arguments": {"days": [1, 2], "wet": True}},
    ]
    assert [json.loads(message["content"])["name"] for message in (first, second)] == ["Hotel Search", "weather"]
    assert "ü" in second["content"] and first["role"] == second["role"] == "tool"
    tools = json.dumps(converted["tools"])
    assert "func1" not in tools and '"type": "object"' in tools
    assert '"type": "integer"' in tools and '"dict"' not in tools


@pytest.mark.parametrize(
    ("content", "results"),
    [
        ('[{"x": 1.10, "x": 2}, "é \\u00e9"]', ['{"x": 1.10, "x": 2}', '"é \\u00e9"']),
        (" [ 12345678901234567890.5 ,[1, 2] ] ", ["12345678901234567890.5", "[1, 2]"]),
        *((text, [text]) for text in ("[1]", "[1, 2, 3]", "[1, 2", "[1, 2,]", "[1 2]", "[1, 2] 3", "[]", "[", "x, y")),
        ("[" * 200_000, ["[" * 200_000]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_toolace_results_stay_as_they_are_written(content: str, results: list[str]) -> None:
    """An array with one result per call is divided; another text is one result."""
    assert _split_results(content, 2) == results


def test_apigen_mt_merges_text_and_call() -> None:
    """Text and the call after it become one assistant message."""
    converted = _converted("apigen-mt", APIGEN)
    system, _, call, result, answer = converted["messages"]
    assert system["content"] == "You are a retail agent."
    assert [tool["function"]["name"] for tool in converted["tools"]] == ["weather"]
    assert call["content"].startswith("I will look.\n<tool_call>")
    assert _calls(call["content"]) == [{"name": "weather", "arguments": {"day": 1}}]
    assert (result["role"], answer["content"]) == ("tool", "Yes.")


def test_glaive_converts_text_turns() -> None:
    """The turns and the call in Glaive's text."""
    converted = _converted("glaive", GLAIVE)
    user, call, result, answer = converted["messages"]
    assert converted["tools"][0]["function"]["name"] == "weather" and user["content"] == "Rain?"
    assert _calls(call["content"]) == [{"name": "weather", "arguments": {"in": "Cote d'Or"}}]
    assert result == {"role": "tool", "content": '{"rain": true}'} and answer["content"] == "Yes."


@pytest.mark.parametrize(
    "row", [MAGICODER, {"instruction": MAGICODER["problem"], "response": MAGICODER["solution"]}], ids=["oss", "evol"]
)
def test_magicoder_becomes_call_of_python_tool(row: dict[str, Any]) -> None:
    """The program of the solution becomes a call of the Python tool."""
    converted = _converted("magicoder", row)
    user, call = converted["messages"]
    (parsed,) = parse_calls(call["content"], max_calls=1)
    assert (parsed.fault, parsed.code, parsed.stdin) == ("", PROGRAM, "")
    assert call["content"].startswith("Like this:\n<tool_call>") and user["content"] == "Print hi."
    assert converted["tools"] == [TOOLS[TOOL_NAME]]


@pytest.mark.parametrize(
    "block",
    [
        f"~~~python\n{PROGRAM}\n~~~",
        f"````python\n{PROGRAM}\n````",
        f"```Python3 title=x\r\n{PROGRAM}\n```\r\nDone.",
        "```{.py}\n" + PROGRAM + "\n``` \nDone.\n```python\nother()\n```",
        "  ```py\n" + "\n".join(f"  {line}" for line in PROGRAM.splitlines()) + "\n  ```",
    ],
)
def test_magicoder_reads_each_code_block_of_markdown(block: str) -> None:
    """Marks, their number, their indentation and the label vary: the program is exact, without the marks."""
    _, call = _converted("magicoder", MAGICODER | {"solution": f"Like this:\n```text\nx\n```\n{block}"})["messages"]
    assert parse_calls(call["content"], max_calls=1)[0].code == PROGRAM
    assert call["content"].startswith("Like this:\n```text\nx\n```\n<tool_call>")


def test_magicoder_keeps_marks_inside_of_a_program() -> None:
    """A text with marks of a code block does not end the program."""
    program = 'print("""\n # ```\n```x""")'
    _, call = _converted("magicoder", MAGICODER | {"solution": f"```python\n{program}\n```"})["messages"]
    assert parse_calls(call["content"], max_calls=1)[0].code == program


def test_tulu3_and_nemotron_convert_to_same_messages() -> None:
    """Chats of Tulu 3 and Nemotron."""
    assert _messages("tulu3", TULU) == _messages("nemotron", NEMOTRON) == TULU["messages"]
    assert _messages("nemotron", NEMOTRON | {"input": "Hi"}) == TULU["messages"]
    with_system = [{"role": "system", "content": "Be kind."}, *TULU["messages"]]
    assert _messages("nemotron", NEMOTRON | {"system_prompt": "Be kind."}) == with_system


def test_conversation_merges_and_trims_messages() -> None:
    """Consecutive assistant messages are merged. Messages after the last of them are dropped."""
    turns = [("system", "S"), ("user", "a"), ("assistant", "b"), ("assistant", "c"), ("tool", ""), ("user", "d")]
    messages: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in turns]
    messages[2]["weight"] = 1
    assert _messages("conversations", {"messages": messages}) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\nc"},
    ]


@pytest.mark.parametrize("texts", [[" S\n"], ["S", "T"], [""], []])
def test_conversation_keeps_its_system_messages(texts: list[str]) -> None:
    """The stage trains on the same tokens as on the file before the conversion: an empty message has some, too."""
    messages = [*({"role": "system", "content": text} for text in texts), *TULU["messages"]]
    assert _messages("conversations", {"messages": messages}) == messages


def test_conversation_keeps_a_reasoning_of_white_space() -> None:
    """It is an empty field, which the stage compares with the chat template."""
    user, answer = TULU["messages"]
    messages = [user, answer | {"reasoning_content": "\n"}]
    assert _messages("conversations", {"messages": messages}) == messages


def _toolace_call(text: str) -> dict[str, Any]:
    turns = [TOOLACE["conversations"][0], {"from": "assistant", "value": text}]
    return TOOLACE | {"conversations": turns}


def _apigen_call(text: str) -> dict[str, Any]:
    turns = [{"from": "human", "value": "q"}, {"from": "function_call", "value": text}]
    return APIGEN | {"conversations": turns}


GLAIVE_CALL = '{"name": "f", "arguments": {"a": 1}}'


def _glaive_call(text: str) -> dict[str, Any]:
    return GLAIVE | {"chat": f"USER: q\n\n\nASSISTANT: <functioncall> {text} <|endoftext|>"}


@pytest.mark.parametrize(
    ("layout", "row", "rule"),
    [
        ("toolace", _toolace_call("[weather(day=tomorrow)]"), "unreadable-call"),
        ("toolace", _toolace_call('[weather("Bonn")]'), "unreadable-call"),
        ("toolace", _toolace_call("[weather(day=[1)]"), "unreadable-call"),
        ("toolace", _toolace_call("[]"), "unreadable-call"),
        ("toolace", _toolace_call("[sail(day=1)]"), "undeclared-tool"),
        ("toolace", TOOLACE | {"system": '[{"name": "x", ]'}, "unreadable-call"),
        ("toolace", _toolace_call("[weather(day=1, day=2)]"), "unreadable-call"),
        ("toolace", _toolace_call("[weather(day=0.12345678901234567890123)]"), "unreadable-call"),
        ("toolace", _toolace_call("[weather(day=NaN)]"), "unreadable-call"),
        ("toolace", _toolace_call("[weather(day=1e999)]"), "unreadable-call"),
        ("toolace", _toolace_call('[weather(day={"a": 1, "a": 2})]'), "unreadable-call"),
        ("apigen-mt", _apigen_call('First I look. {"name": "find", "arguments": {}}'), "unreadable-call"),
        ("apigen-mt", _apigen_call('{"name": "find", "arguments": {}} Then more.'), "unreadable-call"),
        ("apigen-mt", _apigen_call('{"name": "find", "arguments": {"a": 1, "a": 2}}'), "unreadable-call"),
        ("apigen-mt", _apigen_call('{"name": "find", "arguments": {}, "thought": "x"}'), "unreadable-call"),
        ("apigen-mt", _apigen_call(f'{{"name": "find", "arguments": {{"a": 1{"0" * 5000}}}}}'), "unreadable-call"),
        ("glaive", _glaive_call(f"{GLAIVE_CALL} <functioncall> {GLAIVE_CALL}"), "unreadable-call"),
        ("glaive", _glaive_call(f"{GLAIVE_CALL} and text"), "unreadable-call"),
        ("apigen-mt", APIGEN | {"tools": '[{"description": "nameless"}]'}, "unreadable-call"),
        ("glaive", GLAIVE | {"chat": "USER: a\n\n\nASSISTANT: <functioncall> now"}, "unreadable-call"),
        ("glaive", GLAIVE | {"chat": "hello"}, "not-a-conversation"),
        ("glaive", GLAIVE | {"chat": "hello\nUSER: a\n\n\nASSISTANT: b"}, "not-a-conversation"),
        ("glaive", GLAIVE | {"chat": None}, "not-a-conversation"),
        ("nemotron", NEMOTRON | {"output": ""}, "not-a-conversation"),
        ("magicoder", MAGICODER | {"solution": "```rust\nfn main() {}\n```"}, "no-python"),
        ("magicoder", MAGICODER | {"solution": "```python\nfor:\n```"}, "no-python"),
        ("magicoder", MAGICODER | {"solution": "```python\nprint(1)"}, "no-python"),
        ("magicoder", MAGICODER | {"solution": "<pre><code class='python'>print(1)</code></pre>"}, "no-python"),
        ("nemotron", NEMOTRON | {"reasoning": "on"}, "reasoning"),
        ("tulu3", {"messages": [{"role": "user", "content": "x"}]}, "not-a-conversation"),
        ("tulu3", {"messages": [{"role": "assistant", "content": "x"}]}, "not-a-conversation"),
        ("tulu3", {"messages": [TULU["messages"][0], {"role": "assistant", "content": None}]}, "not-a-conversation"),
    ],
)
def test_convert_of_invalid_demonstration_returns_rule(layout: str, row: dict[str, Any], rule: str) -> None:
    """A demonstration that a rule removes."""
    removed = LAYOUTS[layout].convert(row, "f:1")
    assert isinstance(removed, RemovedRow) and removed.rule == rule and rule in RULES


@pytest.mark.parametrize(
    ("layout", "row", "message"),
    [
        (
            "toolace",
            TOOLACE | {"conversations": [{"from": "judge", "value": "x"}]},
            r"conversations\[0\]: from is 'judge'",
        ),
        (
            "apigen-mt",
            APIGEN | {"conversations": [{"from": "gpt", "value": "hi", "weight": 0}]},
            r"conversations\[0\]: weight would be lost",
        ),
        ("toolace", TOOLACE | {"conversations": ["x"]}, r"conversations\[0\]: from is 'x'"),
        ("tulu3", {"messages": [{"role": "bot", "content": "x"}]}, r"messages\[0\]\.role is 'bot'"),
        ("tulu3", {"messages": ["x"]}, r"messages\[0\] must be an object"),
        ("nemotron", NEMOTRON | {"input": [{"role": "user", "content": "x"}, 4]}, r"input\[1\] must be"),
    ],
)
def test_convert_of_unknown_turn_names_field(layout: str, row: dict[str, Any], message: str) -> None:
    """A turn of an unknown form is an error with its field."""
    with pytest.raises(DataError, match=rf"^f:1: {message}"):
        LAYOUTS[layout].convert(row, "f:1")


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        ("toolace", TOOLACE | {"conversations": _turns("weather(place=\"\\frac12\")")}),
        ("toolace", TOOLACE | {"conversations": [{"from": "user", "value": "\frac12?"}, *_turns("weather()")[1:]]}),
        ("apigen-mt", APIGEN | {"system": "\frac12"}),
        ("apigen-mt", APIGEN | {"conversations": [{"from": "human", "value": "x"}, {"from": "function_call",
            "value": '{"name": "weather", "arguments": {"a": [{"b": "\\boxed"}]}}'}]}),
        ("glaive", GLAIVE | {"chat": "USER: x\n\n\nASSISTANT: \frac12"}),
        ("magicoder", MAGICODER | {"solution": f"\frac12\n```python\n{PROGRAM}\n```"}),
        ("magicoder", MAGICODER | {"solution": "```python\nprint('\x0crac')\n```"}),
        ("nemotron", NEMOTRON | {"output": "\frac12"}),
        ("tulu3", {"messages": [TULU["messages"][0], {"role": "assistant", "content": "\frac12"}]}),
        ("glaive", GLAIVE | {"system": json.dumps(WEATHER | {"description": "Of \frac12."})}),
        ("conversations", _called({"a": "\frac12"})),
        ("conversations", _called({"\frac12": 1})),
        ("conversations", _called('{"a": {"b": "\\frac"}}')),
    ],
)  # fmt: skip
def test_convert_with_lost_backslash_returns_rule(layout: str, row: dict[str, Any]) -> None:
    """The rest of a LaTeX command in a message or an argument, at any depth and at an end of a text."""
    removed = LAYOUTS[layout].convert(row, "f:1")
    assert isinstance(removed, RemovedRow) and removed.rule == "not-text" and "a control character" in removed.reason


def test_parse_bracket_calls_reads_literals_only() -> None:
    """Names and literals of bracket calls; other expressions are an error."""
    (call,) = parse_bracket_calls("""[a.b c/d(x='it, (is)', y=None, z={"k": [1, -2.5]}, from="é\\"", e=False)]""")
    assert call.name == "a.b c/d"
    assert call.arguments == {"x": "it, (is)", "y": None, "z": {"k": [1, -2.5]}, "from": 'é"', "e": False}
    for text in ("[f(x=open('/etc/passwd'))]", "[f(x=1) + 2]", "[f(x=b'1')]", "[f(x='1]"):
        with pytest.raises(CallSyntaxError):
            parse_bracket_calls(text)


def test_parse_glaive_call_with_object_or_no_arguments() -> None:
    """The arguments of a Glaive call may be an object, or missing."""
    assert parse_glaive_call('{"name": "f", "arguments": {"a": 1}}').arguments == {"a": 1}
    assert parse_glaive_call('{"name": "f"}').arguments == {}
    with pytest.raises(CallSyntaxError, match="arguments of 'f'"):
        parse_glaive_call("""{"name": "f", "arguments": '{"a": }'}""")


def test_conversation_loss_covers_assistant_messages_only(tmp_path: Path) -> None:
    """In the tokenisation of the SFT stage, the loss mask covers the assistant messages with their ends, and nothing
    else.
    """
    rows = [("toolace", TOOLACE), ("apigen-mt", APIGEN), ("glaive", GLAIVE), ("magicoder", MAGICODER), ("tulu3", TULU)]
    conversations = [_messages(layout, row) for layout, row in rows]
    texts = [message["content"] for messages in conversations for message in messages]
    write_policy(tmp_path / "base", texts=texts, seed=0)
    chat_format = ChatFormat.load(tmp_path / "base")
    for messages in conversations:
        encoded = chat_format.encode_conversation(messages)
        learned = chat_format.decode(
            [token for token, mask in zip(encoded.token_ids, encoded.mask, strict=True) if mask]
        )
        written = [message["content"] for message in messages if message["role"] == "assistant"]
        assert learned == "".join(content + chat_format.end_of_turn for content in written)
