"""Messages of an agent's program as tokens: recorded tokens are used again, edits start another branch."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from rstar2_train.api.roles import ToolParser
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.agent_program.conversation import Conversations
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.call_form import FORMS
from rstar2_train.tools.parser import write_calls
from rstar2_train.tools.schema import call_text
from rstar2_train.utils.api_error import ApiError
from tests.support.token_arrays import logprob_array, token_array

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
USER = {"role": "user", "content": "What is 1 + 1?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "Two."}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

RESULT = {"role": "tool", "tool_call_id": "c", "content": "2"}


def _calling(arguments: str) -> dict[str, Any]:
    return {**ANSWER, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": arguments}}]}


class Talk:
    """A client and a scripted model."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self.chat_format = chat_format
        self.conversations = Conversations(chat_format, max_calls=8)

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        return self.conversations.prompt(messages, tools or [], limit=4000).token_ids

    def ask(
        self,
        messages: list[dict[str, Any]],
        answer: str | list[int],
        tools: list[dict[str, Any]] | None = None,
        finish: Literal["stop", "length"] = "stop",
    ) -> dict[str, Any]:
        """Return the assistant's message; the model samples `answer`, a text or token ids."""
        prompt = self.conversations.prompt(messages, tools or [], limit=4000)
        ids = answer if isinstance(answer, list) else self.chat_format.encode(answer)
        if finish == "stop":
            ids = [*ids, self.chat_format.end_of_turn_id]
        turn = SampledTurn(token_array(ids), logprob_array([-0.5] * len(ids)), finish, [("v1", 0)])
        return self.conversations.reply(prompt, turn, seconds=0.0)

    def sequences(self) -> list[str]:
        """Return the text of each sequence."""
        segments, _ = self.conversations.tree.segments()
        parts = Trajectory("p", 0, prompt_ids=token_array([]), segments=segments).sequences()
        return [self.chat_format.decode(part.ids.tolist()) for part in parts]


@pytest.fixture
def talk(chat_format: ChatFormat) -> Talk:
    return Talk(chat_format)


def test_conversation_equals_a_demonstration(talk: Talk) -> None:
    """An agent that appends messages gets the tokens that a demonstration of the same conversation has."""
    messages = [{"role": "system", "content": "Be brief."}, USER]
    messages.append(talk.ask(messages, "Two."))
    messages.append({"role": "user", "content": "And 2 + 2?"})
    assert talk.prompt(messages) == talk.chat_format.conversation_prompt_ids(messages)


def test_conversation_never_tokenises_a_turn_again(talk: Talk) -> None:
    """Sampled tokens that the tokenizer would not produce stay in the next prompt; so in any later one."""
    pieces = [token for letter in "Find the sum" for token in talk.chat_format.encode(letter)]
    assert pieces != talk.chat_format.encode("Find the sum")
    messages = [USER, talk.ask([USER], pieces), {"role": "user", "content": "Sure?"}]
    first = talk.prompt([USER])
    assert talk.prompt(messages)[: len(first) + len(pieces)] == first + pieces
    messages += [talk.ask(messages, "Yes."), {"role": "user", "content": "Really?"}]
    assert talk.prompt(messages)[: len(first) + len(pieces)] == first + pieces
    assert talk.sequences() == [talk.chat_format.decode(talk.prompt(messages[:3])) + "Yes.<|im_end|>"]


def test_conversation_matches_a_stripped_or_parted_message(talk: Talk) -> None:
    """Frameworks strip texts and send them as parts: the message is still the recorded one."""
    answer = talk.ask([USER], "\n  Two. ")
    recorded = talk.prompt([USER, answer, USER])
    for content in ("Two.", [{"type": "text", "text": "Two."}]):
        assert talk.prompt([USER, {"role": "assistant", "content": content}, USER]) == recorded


def test_conversation_edited_history_is_another_sequence(talk: Talk) -> None:
    """A client that rewrites an answer, or drops old messages, starts a sequence with its own tokens."""
    first = talk.ask([USER], "Two.")
    talk.ask([USER, first, USER], "Two again.")
    edited = [USER, {"role": "assistant", "content": "Three."}, USER]
    talk.ask(edited, "No.")
    talk.ask([{"role": "user", "content": "Summary: 2."}], "Fine.")
    texts = talk.sequences()
    assert len(texts) == 3
    assert "Summary: 2." in texts[0] and "Two again." in texts[1] and "Three." in texts[2]


def test_conversation_tool_calls_round_trip(talk: Talk) -> None:
    """A call becomes `tool_calls`; the echoed message, in any spelling of its JSON, keeps the sampled tokens."""
    written = f"Think.\n{call_text('add', {'a': 1})}"
    answer = talk.ask([USER], written, [TOOL])
    (call,) = answer["tool_calls"]
    assert answer["content"] == "Think." and json.loads(call["function"]["arguments"]) == {"a": 1}
    echoed = dict(answer, tool_calls=[{**call, "function": {"name": "add", "arguments": '{ "a":1}'}}])
    reply = {"role": "tool", "tool_call_id": call["id"], "content": "2<|im_end|>"}
    ids = talk.prompt([USER, echoed, reply], [TOOL])
    text = talk.chat_format.decode(ids)
    assert f"{written}<|im_end|>" in text
    assert "<tool_response>\n2< |im_end|>\n</tool_response>" in text  # it cannot forge the end of a turn
    assert '<tools>\n{"type": "function"' in text
    talk.conversations.mark_errors([call["id"]])
    (record,) = talk.conversations.tree.turns[0].calls
    assert (record.name, record.status, record.response) == ("add", "error", "2<|im_end|>")
    with pytest.raises(ApiError, match="is not the id of a call"):
        talk.conversations.mark_errors(["call_other"])


@pytest.mark.parametrize("parser", FORMS)
def test_conversation_tool_calls_of_a_family_round_trip(chat_format: ChatFormat, parser: ToolParser) -> None:
    """A client's calls have the form of the model's family in both directions, and its tools in the prompt too."""
    talk = Talk(ChatFormat(chat_format.tokenizer, system_prompt="", prompt_prefix="", parser=parser))
    written = f"Think.\n{write_calls([('add', {'a': 1})], parser)}"
    answer = talk.ask([USER], written, [TOOL])
    assert answer["content"] == "Think." and answer["tool_calls"][0]["function"]["name"] == "add"
    reply = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "2"}
    recorded = talk.prompt([USER, answer, reply], [TOOL])
    text = talk.chat_format.decode(recorded)
    assert f"{written}<|im_end|>" in text and "<tool_call>" not in text
    fresh = Talk(talk.chat_format)
    assert fresh.prompt([USER, answer, reply], [TOOL]) == recorded


@pytest.mark.parametrize(
    ("written", "status"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {"a": "1"}}\n</tool_call>', "malformed"),
        ('<tool_call>\n{"name": "sub", "arguments": {}}\n</tool_call>', "unknown_tool"),
        ("<tool_call>\n{'name'\n</tool_call>", "malformed"),
    ],
)
def test_conversation_invalid_call_is_a_text_and_an_error(talk: Talk, written: str, status: str) -> None:
    """As vLLM, the endpoint returns a turn with an invalid call as a text; it counts as a tool error."""
    answer = talk.ask([USER], written, [TOOL])
    assert answer == {"role": "assistant", "content": written}
    assert [call.status for call in talk.conversations.tree.turns[0].calls] == [status]


def test_conversation_truncated_turn_is_closed(talk: Talk) -> None:
    """A turn that a limit cut has no end-of-turn token: the next prompt adds it, masked."""
    answer = talk.ask([USER], "Two", finish="length")
    ids = talk.prompt([USER, answer, USER])
    assert talk.chat_format.decode(ids).count("Two<|im_end|>") == 1


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "assistant", "content": "x"}], "the last message must not be the assistant's"),
        ([{"role": "assistant", "content": "x"}, USER], r"messages\[0\] must not be the assistant's"),
        ([{"role": "robot", "content": "x"}], "is not one of"),
        (["x"], "is not one of"),
        ([{"role": "user"}], "must be a string or a list of text parts"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] must be a text part"),
        ([{"role": "user", "content": [{"type": "image_url", "text": "x"}]}], r"content\[0\] must be a text part"),
        ([{"role": "user", "content": [{"type": "text", "text": "x", "lang": "en"}]}], r"\[0\].lang is not supported"),
        ([{**USER, "name": "ann"}], r"\[0\].name is not supported: write the name in the content"),
        ([{**USER, "tool_calls": [CALL]}], r"\[0\].tool_calls is not supported: only assistant"),
        ([USER, {**ANSWER, "reasoning_content": "r"}, USER], r"\[1\].reasoning_content is not .* in the content"),
        ([USER, {**ANSWER, "refusal": "no"}, USER], r"\[1\].refusal is not supported"),
        ([USER, {**ANSWER, "prefix": True}, USER], r"\[1\].prefix is not supported"),
        ([USER, {**ANSWER, "tool_calls": [CALL | {"extra_content": {"a": 1}}]}, USER], r"\[0\].extra_content is not"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
        ([USER, {"role": "assistant", "function_call": {"name": "f"}}, USER], r"\[1\].function_call is not supported"),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {}}]}, USER], r"tool_calls\[0\] must be a call"),
        ([USER, {**ANSWER, "tool_calls": 5}, USER], r"\[1\].tool_calls must be a list"),
        ([USER, {**ANSWER, "tool_calls": [5]}, USER], r"tool_calls\[0\] must be a call"),
        ([USER, _calling("[1]"), USER], r"must be a call .* JSON object"),
        ([USER, _calling("NaN"), RESULT], r"must be a call .* JSON object"),
        ([USER, _calling('{"a": NaN}'), RESULT], r"function.arguments.a is nan"),
        ([USER, _calling('{"a": 1, "a": 2}'), RESULT], "has the key 'a' twice"),
        ([USER, _calling('{"a": 0.1234567890123456789}'), RESULT], "which a double rounds to"),
        ([USER, {**ANSWER, "tool_calls": [CALL | {"type": "custom"}]}, RESULT], r"\[0\].type must be function"),
        (
            [USER, {**ANSWER, "tool_calls": [{**CALL, "function": CALL["function"] | {"x": 1}}]}, RESULT],
            "function.x is",
        ),
        ([USER, _calling("{}"), USER], "send one result for each call"),
        ([USER, _calling("{}"), RESULT, RESULT], "send one result for each call"),
        ([USER, _calling("{}"), {**RESULT, "tool_call_id": "zzz"}], r"\['c'\].*\['zzz'\].*: send one result"),
        ([USER, {**ANSWER, "tool_calls": [CALL, CALL]}, RESULT, RESULT], "send one result for each call"),
        ([USER, _calling("{}"), {**RESULT, "name": "sub"}], r"\[2\].name 'sub' is not the name of its call: remove it"),
        ([USER, _calling("{}"), {"role": "tool", "content": "2", "name": "sub"}], r"\[2\].name 'sub' is not the name"),
        ([USER, ANSWER, {"role": "tool", "content": "2", "name": "add"}], r"\[2\].name 'add' is not the name"),
        ([USER, ANSWER, RESULT], r"\[1\].tool_calls has the ids \[\].*\['c'\].*: send one result"),
        ([USER, RESULT], r"\[0\].tool_calls has the ids \[\].*\['c'\].*: send one result"),
        ([USER, _calling('{"a": "\\ud800"}'), RESULT], r"\[1\].tool_calls\[0\] has a lone surrogate"),
        (
            [USER, {**ANSWER, "tool_calls": [{**CALL, "function": {"name": "", "arguments": "{}"}}]}, RESULT],
            r"\[0\] must be a call",
        ),
        ([{"role": "user", "content": "word " * 3000}], "shorten the messages"),
    ],
)
def test_conversation_unusable_messages_are_rejected(talk: Talk, messages: list[Any], message: str) -> None:
    """Each error names the field."""
    with pytest.raises(ApiError, match=message) as error:
        talk.conversations.prompt(messages, [], limit=1000)
    assert error.value.status == 400


def test_conversation_results_are_in_the_order_of_the_calls(talk: Talk) -> None:
    """The model reads each result as that of its call, in any order of the client; without ids, by its place."""
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "d"}]}
    first, second = ({"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in ("c", "d"))
    expected = talk.prompt([USER, calling, first, second])
    assert talk.prompt([USER, calling, second, first]) == expected
    unnamed = [{key: value[key] for key in ("role", "content")} for value in (first, second)]
    assert talk.prompt([USER, calling, *unnamed]) == expected
    text = talk.chat_format.decode(expected)
    assert 0 < text.index("of c") < text.index("of d")


def test_conversation_takes_the_empty_fields_of_clients(talk: Talk) -> None:
    """openai, LiteLLM and LangChain send a response back with fields that have no value."""
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "reasoning_content": ""}
    calling = _calling('{"a": 1}')
    echo = calling | empty | {"provider_specific_fields": {"refusal": None}}
    parts = [{"type": "text", "text": USER["content"], "cache_control": {"type": "ephemeral"}}]
    result = {"role": "tool", "content": "2", "tool_call_id": "c", "name": "add"}
    assert talk.prompt([USER | {"content": parts}, echo, result]) == talk.prompt([USER, calling, RESULT])


def test_conversation_unusable_tools_are_rejected(talk: Talk) -> None:
    """Before anything is sampled."""
    for tool in (
        {"function": {}},
        {"function": {"name": "f", "parameters": {"type": 5}}},
        {"type": "web_search"},
        {"function": {"name": "f", "parameters": 5}},
        {**TOOL, "type": "custom"},
    ):
        with pytest.raises(ApiError, match=r"tools\[0\]"):
            talk.prompt([USER], [tool])
