"""The datasets of the cold start: as they are published, and as the SFT stage then reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.data.prepare.call_syntax import CallSyntaxError, bracket_calls, glaive_call
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.records import RULES, RemovedRow
from rstar2_train.data.readers import DataError
from rstar2_train.data.tiny.policy import write_policy
from rstar2_train.rollout.chat_format import DEFAULT_SYSTEM_PROMPT, ChatFormat
from rstar2_train.tools.parser import parse_calls
from rstar2_train.tools.schema import TOOL_NAME, TOOLS, tools_section

SEARCH = {"name": "Hotel Search", "description": "Finds.", "parameters": {"type": "dict", "properties": {
    "city": {"type": "str"}, "stars": {"type": "int"}}, "required": ["city"]}}  # fmt: skip
WEATHER = {"name": "weather", "description": "Tells {it}.", "parameters": {"type": "object", "properties": {}}}
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
MAGICODER = {"lang": "python", "problem": "Say hi.", "solution": f"Like this:\n```python\n{PROGRAM}\n```\nDone."}
NEMOTRON = {
    "input": [{"role": "user", "content": "Hi"}],
    "output": "Hello.",
    "category": "chat",
    "reasoning": "off",
    "system_prompt": "detailed thinking off",
}
TULU = {"id": "x", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}


def _messages(layout: str, row: dict[str, Any]) -> list[dict[str, str]]:
    converted = LAYOUTS[layout].convert(row, "f:1")
    assert not isinstance(converted, RemovedRow), converted
    messages: list[dict[str, str]] = converted["messages"]
    return messages


def _roles(messages: list[dict[str, str]]) -> list[str]:
    return [message["role"] for message in messages]


def _calls(text: str) -> list[dict[str, Any]]:
    """The calls of a turn, as the real parser of rollouts finds them: well formed, if of tools it does not have."""
    parsed = parse_calls(text, max_calls=8)
    assert all(call.fault in ("", "unknown_tool") for call in parsed), parsed
    bodies = [part.split("</tool_call>")[0] for part in text.split("<tool_call>")[1:]]
    assert len(bodies) == len(parsed)
    return [json.loads(body) for body in bodies]


def test_toolace() -> None:
    system, user, call, one, two, answer = _messages("toolace", TOOLACE)
    assert user == {"role": "user", "content": "Hotels in Bonn?"} and answer["content"] == "None."
    assert _calls(call["content"]) == [
        {"name": "Hotel Search", "arguments": {"city": "Bonn", "stars": 4}},
        {"name": "weather", "arguments": {"days": [1, 2], "wet": True}},
    ]
    assert [json.loads(message["content"])["name"] for message in (one, two)] == ["Hotel Search", "weather"]
    assert "ü" in two["content"] and one["role"] == two["role"] == "tool"
    assert "func1" not in system["content"] and '"type": "object"' in system["content"]
    assert '"type": "integer"' in system["content"] and '"dict"' not in system["content"]


def test_apigen_mt_says_and_calls_in_one_turn() -> None:
    system, _, call, result, answer = _messages("apigen-mt", APIGEN)
    assert system["content"].startswith("You are a retail agent.\n\n# Tools")
    assert call["content"].startswith("I will look.\n<tool_call>")
    assert _calls(call["content"]) == [{"name": "weather", "arguments": {"day": 1}}]
    assert (result["role"], answer["content"]) == ("tool", "Yes.")


def test_glaive() -> None:
    system, user, call, result, answer = _messages("glaive", GLAIVE)
    assert '"name": "weather"' in system["content"] and user["content"] == "Rain?"
    assert _calls(call["content"]) == [{"name": "weather", "arguments": {"in": "Cote d'Or"}}]
    assert result == {"role": "tool", "content": '{"rain": true}'} and answer["content"] == "Yes."


@pytest.mark.parametrize(
    "row", [MAGICODER, {"instruction": MAGICODER["problem"], "response": MAGICODER["solution"]}], ids=["oss", "evol"]
)
def test_magicoder_becomes_a_call_that_our_tool_can_run(row: dict[str, Any]) -> None:
    system, user, call = _messages("magicoder", row)
    (parsed,) = parse_calls(call["content"], max_calls=1)
    assert (parsed.fault, parsed.code, parsed.stdin) == ("", PROGRAM, "")
    assert call["content"].startswith("Like this:\n<tool_call>") and user["content"] == "Say hi."
    assert system["content"] == tools_section([TOOLS[TOOL_NAME]])
    assert DEFAULT_SYSTEM_PROMPT.endswith(system["content"])


def test_chat() -> None:
    assert _messages("tulu3", TULU) == _messages("nemotron", NEMOTRON) == TULU["messages"]
    assert _messages("nemotron", NEMOTRON | {"input": "Hi"}) == TULU["messages"]


def test_neighbouring_assistant_turns_become_one_and_what_follows_the_last_goes() -> None:
    turns = [("system", "S"), ("user", "a"), ("assistant", "b"), ("assistant", "c"), ("tool", ""), ("user", "d")]
    messages = [{"role": role, "content": content, "weight": 1} for role, content in turns]
    assert _messages("conversations", {"messages": messages}) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\nc"},
    ]


def _toolace_call(text: str) -> dict[str, Any]:
    turns = [TOOLACE["conversations"][0], {"from": "assistant", "value": text}]
    return TOOLACE | {"conversations": turns}


@pytest.mark.parametrize(
    ("layout", "row", "rule"),
    [
        ("toolace", _toolace_call("[weather(day=tomorrow)]"), "unreadable-call"),
        ("toolace", _toolace_call('[weather("Bonn")]'), "unreadable-call"),
        ("toolace", _toolace_call("[weather(day=[1)]"), "unreadable-call"),
        ("toolace", _toolace_call("[]"), "unreadable-call"),
        ("toolace", _toolace_call("[sail(day=1)]"), "undeclared-tool"),
        ("toolace", TOOLACE | {"system": '[{"name": "x", ]'}, "unreadable-call"),
        ("apigen-mt", APIGEN | {"tools": '[{"description": "nameless"}]'}, "unreadable-call"),
        ("glaive", GLAIVE | {"chat": "USER: a\n\n\nASSISTANT: <functioncall> now"}, "unreadable-call"),
        ("glaive", GLAIVE | {"chat": "hello"}, "not-a-conversation"),
        ("glaive", GLAIVE | {"chat": None}, "not-a-conversation"),
        ("nemotron", NEMOTRON | {"output": ""}, "not-a-conversation"),
        ("magicoder", MAGICODER | {"solution": "```rust\nfn main() {}\n```"}, "no-python"),
        ("magicoder", MAGICODER | {"solution": "```python\nfor:\n```"}, "no-python"),
        ("nemotron", NEMOTRON | {"reasoning": "on"}, "reasoning"),
        ("tulu3", {"messages": [{"role": "user", "content": "x"}]}, "not-a-conversation"),
        ("tulu3", {"messages": [{"role": "assistant", "content": "x"}]}, "not-a-conversation"),
        ("tulu3", {"messages": [TULU["messages"][0], {"role": "assistant", "content": None}]}, "not-a-conversation"),
    ],
)
def test_what_a_demonstration_is_removed_by(layout: str, row: dict[str, Any], rule: str) -> None:
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
        ("toolace", TOOLACE | {"conversations": ["x"]}, r"conversations\[0\]: from is 'x'"),
        ("tulu3", {"messages": [{"role": "bot", "content": "x"}]}, r"messages\[0\]: role is 'bot'"),
        ("tulu3", {"messages": ["x"]}, r"messages\[0\]: must be an object"),
        ("nemotron", NEMOTRON | {"input": [{"role": "user", "content": 3.5, "x": 1}, 4]}, r"input\[1\]: must be"),
    ],
)
def test_a_turn_of_unknown_form_is_an_error(layout: str, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=rf"^f:1: {message}"):
        LAYOUTS[layout].convert(row, "f:1")


def test_calls_in_brackets() -> None:
    (call,) = bracket_calls("""[a.b c/d(x='it, (is)', y=None, z={"k": [1, -2.5]}, from="é\\"", e=False)]""")
    assert call.name == "a.b c/d"
    assert call.arguments == {"x": "it, (is)", "y": None, "z": {"k": [1, -2.5]}, "from": 'é"', "e": False}
    for text in ("[f(x=open('/etc/passwd'))]", "[f(x=1) + 2]", "[f(x=b'1')]", "[f(x='1]"):
        with pytest.raises(CallSyntaxError):
            bracket_calls(text)


def test_a_call_of_glaive_may_have_its_arguments_as_an_object_or_none() -> None:
    assert glaive_call('{"name": "f", "arguments": {"a": 1}}').arguments == {"a": 1}
    assert glaive_call('{"name": "f"}').arguments == {}
    with pytest.raises(CallSyntaxError, match="arguments of 'f'"):
        glaive_call("""{"name": "f", "arguments": '{"a": }'}""")


def test_the_loss_is_on_what_assistants_wrote_and_on_nothing_else(tmp_path: Path) -> None:
    """Through the SFT stage's own tokenisation: the masked-in tokens are the assistant messages, with their ends."""
    rows = [("toolace", TOOLACE), ("apigen-mt", APIGEN), ("glaive", GLAIVE), ("magicoder", MAGICODER), ("tulu3", TULU)]
    conversations = [_messages(layout, row) for layout, row in rows]
    texts = [message["content"] for messages in conversations for message in messages]
    write_policy(tmp_path / "base", texts=texts, seed=0)
    protocol = ChatFormat.load(tmp_path / "base")
    for messages in conversations:
        encoded = protocol.conversation(messages)
        learned = protocol.decode([token for token, mask in zip(encoded.token_ids, encoded.mask, strict=True) if mask])
        written = [message["content"] for message in messages if message["role"] == "assistant"]
        assert learned == "".join(content + protocol.end_of_turn for content in written)
