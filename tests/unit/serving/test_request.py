"""What a client may ask for, and what the model is shown of it."""

import re

import pytest
from pydantic import ValidationError

from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.serving.errors import ApiError
from rstar2_train.serving.request import TEMPERATURE, ChatRequest, prompt_ids
from rstar2_train.serving.text import outputs_text
from rstar2_train.tools.schema import TOOLS, tools_section
from tests.support.engine import FIRST_REPLY, FIRST_TURN, LAST_TURN, QUESTION, SYSTEM

CONTEXT = 1024
USER = {"role": "user", "content": QUESTION}


def question(**fields: object) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [USER], **fields})


def refused(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as error:
        question(**fields).check(model="m")
    return error.value


@pytest.mark.parametrize(
    ("name", "asked", "allowed"),
    [
        ("n", 2, 1),
        ("logprobs", True, False),
        ("top_logprobs", 5, 0),
        ("presence_penalty", 0.5, 0),
        ("frequency_penalty", -1, 0.0),
        ("logit_bias", {"1": 5}, {}),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("reasoning_effort", "high", None),
        ("best_of", 3, None),
    ],
)
def test_what_is_not_done_is_refused_by_name(name: str, asked: object, allowed: object) -> None:
    error = refused(**{name: asked})
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    assert name in str(error) and repr(asked) in str(error)
    question(**{name: allowed}).check(model="m")


def test_tool_choice_needs_tools() -> None:
    assert refused(tool_choice="auto").param == "tool_choice"
    assert refused(parallel_tool_calls=False).param == "parallel_tool_calls"
    question(tool_choice="auto", tools=[{"type": "function"}]).check(model="m")


def test_another_model_is_not_found() -> None:
    error = refused(model="other")
    assert (error.status, error.code) == (404, "model_not_found")
    assert error.body()["error"]["param"] == "model"


@pytest.mark.parametrize(
    "fields",
    [{"temperature": -1}, {"temperature": 2.1}, {"top_p": 0}, {"max_tokens": 0}, {"stop": ["a"] * 5}, {"messages": []}],
)
def test_values_out_of_bounds_are_refused(fields: dict) -> None:
    with pytest.raises(ValidationError):
        question(**fields)


def test_stop_is_one_string_or_several_or_none() -> None:
    assert [question(stop=stop).stop for stop in ("a", ["a", "b"], None)] == [["a"], ["a", "b"], []]


def test_sampling_follows_the_request_and_its_defaults() -> None:
    sampling = question().sampling(prompt_tokens=30, context=100, max_turns=7)
    assert (sampling.temperature, sampling.top_p) == (TEMPERATURE, 1.0)
    assert (sampling.max_response_tokens, sampling.max_turns) == (70, 7)
    asked = question(temperature=0, top_p=0.5, max_tokens=9, max_completion_tokens=8)
    sampling = asked.sampling(prompt_tokens=30, context=100, max_turns=7)
    assert (sampling.temperature, sampling.top_p, sampling.max_response_tokens) == (0, 0.5, 8)


@pytest.mark.parametrize(("prompt", "tokens"), [(100, None), (101, None), (30, 71)])
def test_an_answer_without_room_is_refused(prompt: int, tokens: int | None) -> None:
    with pytest.raises(ApiError) as error:
        question(max_tokens=tokens).sampling(prompt_tokens=prompt, context=100, max_turns=1)
    assert (error.value.status, error.value.code) == (400, "context_length_exceeded")
    assert "100 tokens" in str(error.value)


def test_the_engine_is_given_only_what_was_understood() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = question(tools=tools, user="me", store=False, max_tokens=5, stream=True)
    assert asked.for_engine(model="policy") == {
        "model": "policy",
        "messages": [USER],
        "tools": tools,
        "max_tokens": 5,
        "stream": True,
        "stop": [],
        "temperature": TEMPERATURE,
    }


def test_a_first_question_is_what_a_rollout_begins_with(chat_format: ChatFormat) -> None:
    assert prompt_ids([USER], chat_format, context=CONTEXT) == chat_format.prompt_ids(QUESTION)
    parts = [{"type": "text", "text": QUESTION[:5]}, {"type": "text", "text": QUESTION[5:]}]
    assert prompt_ids([{"role": "user", "content": parts}], chat_format, context=CONTEXT) == chat_format.prompt_ids(
        QUESTION
    )


def test_a_conversation_is_the_tokens_that_the_loop_made_of_it(chat_format: ChatFormat) -> None:
    content = FIRST_TURN + outputs_text(FIRST_REPLY) + LAST_TURN
    told = [{"role": "tool", "content": text} for text in FIRST_REPLY]
    said = [{"role": "assistant", "content": FIRST_TURN}, *told, {"role": "assistant", "content": LAST_TURN}]
    whole = chat_format.encode_conversation([{"role": "system", "content": SYSTEM}, USER, *said, USER])
    shown = [USER, {"role": "assistant", "content": content}, USER]
    assert prompt_ids(shown, chat_format, context=CONTEXT) == whole.token_ids


def test_the_prefix_stands_before_the_first_question_alone(chat_format: ChatFormat) -> None:
    prefixed = ChatFormat(chat_format.tokenizer, system_prompt=SYSTEM, prompt_prefix="PRE ")
    text = prefixed.decode(prompt_ids([USER, {"role": "assistant", "content": "a"}, USER], prefixed, context=CONTEXT))
    assert text.count("PRE ") == 1 and text.index("PRE ") < text.index(QUESTION)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_behind_a_clients_own_system_message_comes_the_tool(chat_format: ChatFormat, role: str) -> None:
    own = f"Be brief.\n\n{tools_section([TOOLS[chat_format.tool]])}"
    shown = chat_format.conversation_prompt_ids([{"role": "system", "content": own}, USER])
    assert prompt_ids([{"role": role, "content": "Be brief."}, USER], chat_format, context=CONTEXT) == shown
    assert prompt_ids([{"role": role, "content": own}, USER], chat_format, context=CONTEXT) == shown


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, {"role": "assistant", "content": "x"}], "the last message must be the user's"),
        ([{"role": "tool", "content": "x"}, USER], "messages[0].role 'tool'"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}, USER], "messages[0].tool_calls"),
        ([{"role": "user", "content": None}], "messages[0].content must be a string"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content must be"),
        ([{"content": "x"}], "messages[0].role None"),
    ],
)
def test_messages_that_cannot_be_shown_are_refused(chat_format: ChatFormat, messages: list, words: str) -> None:
    with pytest.raises(ApiError, match=re.escape(words)) as error:
        prompt_ids(messages, chat_format, context=CONTEXT)
    assert error.value.status == 400


def test_half_a_character_is_refused_before_it_reaches_the_tokenizer(chat_format: ChatFormat) -> None:
    with pytest.raises(ApiError, match=r"messages\[0\].content holds half a surrogate pair") as error:
        prompt_ids([{"role": "user", "content": "half \ud800"}], chat_format, context=CONTEXT)
    assert error.value.status == 400


def test_what_cannot_be_so_few_tokens_is_refused_before_the_tokenizer_works_on_it(chat_format: ChatFormat) -> None:
    long = "x" * (CONTEXT * chat_format.longest_token)
    with pytest.raises(ApiError, match=f"takes {CONTEXT} tokens; the messages have .* characters: shorten") as error:
        prompt_ids([{"role": "user", "content": long}], chat_format, context=CONTEXT)
    assert (error.value.status, error.value.code) == (400, "context_length_exceeded")


def test_too_long_an_answer_is_told_from_too_long_a_prompt() -> None:
    with pytest.raises(ApiError, match="which leaves 60 of the 100 asked for: lower max_tokens") as error:
        question(max_tokens=100).sampling(prompt_tokens=40, context=100, max_turns=3)
    assert error.value.param == "max_tokens"
