"""Validation of a client's request, and its prompt."""

import re

import pytest
from pydantic import ValidationError

from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.serving.request import TEMPERATURE, ChatRequest, prompt_ids
from rstar2_train.serving.text import outputs_text
from rstar2_train.utils.api_error import ApiError
from tests.support.engine import FIRST_REPLY, FIRST_TURN, LAST_TURN, QUESTION, SYSTEM

CONTEXT = 1024
USER = {"role": "user", "content": QUESTION}


def chat_request(**fields: object) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": [USER], **fields})


def _calling(arguments: object) -> list[dict[str, object]]:
    """Return a question and a call of `f`, with the id `a`."""
    function = {"name": "f", "arguments": arguments}
    return [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}]


def rejection(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as error:
        chat_request(**fields).check(model="m")
    return error.value


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
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
def test_check_unsupported_parameter_is_named(name: str, value: object, allowed: object) -> None:
    """Its no-op value is accepted."""
    error = rejection(**{name: value})
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    assert name in str(error) and repr(value) in str(error)
    chat_request(**{name: allowed}).check(model="m")


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "auto"},
        {"parallel_tool_calls": True},
        {"tools": [], "tool_choice": "none"},
        {"top_k": -1},
        {"repetition_penalty": 1.0},
        {"min_p": 0},
        {"best_of": 1},
        {"skip_special_tokens": True},
        {"parallel_tool_calls": False, "tools": None},
        {"functions": [], "function_call": "auto"},
        {"stream": None, "stop": None, "seed": None, "logprobs": None, "user": None, "stream_options": None},
        {"modalities": ["text"], "service_tier": "auto", "store": False, "metadata": {"run": "1"}},
        {"prompt_cache_key": "k", "safety_identifier": "u", "user": "u", "prompt_cache_retention": "24h"},
        {"reasoning_effort": "medium", "verbosity": "medium", "prediction": None, "web_search_options": None},
        {"priority": 0, "documents": [], "include_reasoning": True, "return_token_ids": False, "cache_salt": "s"},
        {"presence_penalty": 0.0, "frequency_penalty": 0, "n": 1, "logit_bias": {}, "top_logprobs": 0},
        {"response_format": {"type": "text"}, "stream": True, "stream_options": {"include_usage": True}},
        {"min_tokens": 0, "ignore_eos": False, "include_stop_str_in_output": False, "length_penalty": 1.0},
        {"add_generation_prompt": True, "continue_final_message": False, "echo": False, "chat_template_kwargs": {}},
        {"suffix": "", "allowed_token_ids": [], "logits_processors": [], "vllm_xargs": {}, "detokenize": True},
        {"response_format": {"type": "text", "schema": None}, "structured_outputs": {}, "separate_reasoning": True},
        {"stop": [""], "logit_bias": [], "response_format": {"type": "text", "json_schema": None}},
        {"tfs": 1, "top_a": 0, "no_repeat_ngram_size": 0},
        {"extra_body": {}, "reasoning": {"effort": "medium"}, "provider": {}, "plugins": [], "models": []},
        {"xtc_probability": 0, "mirostat": 0, "dry_multiplier": 0.0, "kv_transfer_params": {}},
        {"stop_token_ids": [], "bad_words": [], "use_beam_search": False, "spaces_between_special_tokens": True},
    ],
    ids=lambda fields: " ".join(fields),
)
def test_check_accepts_values_that_change_nothing(fields: dict) -> None:
    """Clients (LangChain, LiteLLM, openai-node, vLLM's) send the defaults of many parameters."""
    chat_request(**fields).check(model="m")


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 40}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"skip_special_tokens": False},
        {"ignore_eos": True},
        {"reasoning_effort": "low"}, {"verbosity": "high"}, {"priority": 1}, {"documents": [{}]},
        {"functions": [{}]}, {"modalities": ["text", "audio"]}, {"stop_token_ids": [1]}, {"service_tier": "flex"},
        {"n": True}, {"logprobs": 0}, {"top_logprobs": False}, {"echo": 0}, {"prompt_logprobs": 0}, {"best_of": True},
        {"no_repeat_ngram_size": 3}, {"reasoning": {"effort": "low"}}, {"models": ["a"]}, {"mirostat": 2},
        {"extra_body": {"top_k": 5}},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_check_rejects_other_values(fields: dict) -> None:
    """A value that would change the answer, or of another type, is never ignored."""
    assert rejection(**fields).param == next(iter(fields))


def test_check_rejects_unknown_stream_options() -> None:
    """An option of the stream that has no effect is not ignored."""
    assert rejection(stream_options={"continuous_usage_stats": True}).param == "continuous_usage_stats"
    chat_request(stream_options={"include_usage": True, "include_obfuscation": False}).check(model="m")


def test_check_tool_choice_requires_tools() -> None:
    """A choice that forces a call is rejected without tools."""
    assert rejection(tool_choice="required").param == "tool_choice"
    assert rejection(tool_choice={"type": "function", "function": {"name": "f"}}).param == "tool_choice"
    chat_request(tool_choice="auto", tools=[{"type": "function", "function": {"name": "f"}}]).check(model="m")


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "web_search"}, r"tools\[0\] must be an object with function\.name"),
        ({"name": "f", "input_schema": {"type": "object"}}, r"tools\[0\] must be an object with function\.name"),
        ({"type": "custom", "function": {"name": "f"}}, r"tools\[0\]\.type must be function"),
        ({"function": {"name": "f"}, "examples": ["x"]}, r"tools\[0\]\.examples is not supported: remove it"),
        ({"function": {"name": "f", "input_schema": {"a": 1}}}, r"function\.input_schema is not supported"),
    ],
)
def test_check_rejects_fields_of_tools(tool: dict, message: str) -> None:
    """The engine ignores the fields of a tool that it does not know, and its prompt has none of them."""
    with pytest.raises(ApiError, match=message) as error:
        chat_request(tools=[tool]).check(model="m")
    assert error.value.param == "tools"
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
    chat_request(tools=[{"type": "function", "function": function, "examples": []}]).check(model="m")


def test_check_other_model_is_not_found() -> None:
    """The error has the code of OpenAI."""
    error = rejection(model="other")
    assert (error.status, error.code) == (404, "model_not_found")
    assert error.body()["error"]["param"] == "model"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1}, {"temperature": 2.1}, {"top_p": 0}, {"max_tokens": 0}, {"stop": ["a"] * 5},
        {"messages": []}, {"temperature": "0.5"}, {"temperature": True}, {"max_tokens": True}, {"max_tokens": "5"},
        {"seed": 2**63}, {"seed": True}, {"stream": "true"}, {"stream": 1}, {"parallel_tool_calls": 0},
    ],
)  # fmt: skip
def test_request_value_out_of_bounds_is_invalid(fields: dict) -> None:
    """Bounds and types are those of OpenAI's API: no value is read as one of another type."""
    with pytest.raises(ValidationError):
        chat_request(**fields)


def test_stop_is_a_string_a_list_or_null() -> None:
    """All forms of OpenAI's API become a list."""
    assert [chat_request(stop=stop).stop for stop in ("a", ["a", "b"], None, "")] == [["a"], ["a", "b"], [], []]


def test_sampling_has_request_values_or_defaults() -> None:
    """max_completion_tokens has precedence over max_tokens."""
    sampling = chat_request().sampling(prompt_tokens=30, context=100, max_turns=7)
    assert (sampling.temperature, sampling.top_p) == (TEMPERATURE, 1.0)
    assert (sampling.max_response_tokens, sampling.max_turns) == (70, 7)
    body = chat_request(temperature=0, top_p=0.5, max_tokens=9, max_completion_tokens=8)
    sampling = body.sampling(prompt_tokens=30, context=100, max_turns=7)
    assert (sampling.temperature, sampling.top_p, sampling.max_response_tokens) == (0, 0.5, 8)


@pytest.mark.parametrize(("prompt", "tokens"), [(100, None), (101, None), (30, 71)])
def test_sampling_without_space_is_rejected(prompt: int, tokens: int | None) -> None:
    """The message has the size of the context."""
    with pytest.raises(ApiError) as error:
        chat_request(max_tokens=tokens).sampling(prompt_tokens=prompt, context=100, max_turns=1)
    assert (error.value.status, error.value.code) == (400, "context_length_exceeded")
    assert "100 tokens" in str(error.value)


def test_for_engine_has_only_supported_parameters() -> None:
    """The name of the model is that of the engine."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = chat_request(tools=tools, user="me", store=False, max_tokens=5, stream=True)
    assert body.for_engine(model="policy") == {
        "model": "policy",
        "messages": [USER],
        "tools": tools,
        "max_tokens": 5,
        "stream": True,
        "stop": [],
        "temperature": TEMPERATURE,
    }


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([USER | {"name": "ann"}], r"messages\[0\]\.name is not supported"),
        ([USER, {"role": "assistant", "content": "x", "reasoning_content": "r"}, USER], r"\[1\]\.reasoning_content is"),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}, "x": 1}]}], r"tool_calls\[0\]\.x is"),
        ([{"role": "function", "content": "x"}], r"messages\[0\]\.role 'function' is not one of"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content must be a string"),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\]\.content has a lone surrogate"),
        (_calling('{"a": 1, "a": 2}'), r"messages\[1\]\.tool_calls\[0\]: an object has the key 'a' twice"),
        (_calling('{"a": "\\ud800"}'), r"messages\[1\]\.tool_calls\[0\] has a lone surrogate"),
        (_calling("{"), r"messages\[1\]\.tool_calls\[0\]: Expecting property name"),
        (_calling("[1]"), r"messages\[1\]\.tool_calls\[0\] must be a call"),
        (_calling({"a": 1}), r"messages\[1\]\.tool_calls\[0\] must be a call"),
    ],
)
def test_check_with_tools_rejects_fields_of_messages(messages: list, message: str) -> None:
    """The engine, which answers these requests, ignores the fields that it does not know."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(ApiError, match=message):
        chat_request(tools=tools, messages=messages).check(model="m")
    calling = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]}
    result = {"role": "tool", "tool_call_id": "a", "content": "1"}
    chat_request(tools=tools, messages=[USER, calling | {"refusal": None}, result]).check(model="m")
    for arguments in ("", None, "{}", '{"a": {"b": 1.5}}'):
        chat_request(tools=tools, messages=[*_calling(arguments), result]).check(model="m")


def test_results_of_tools_are_in_the_order_of_their_calls() -> None:
    """Clients append results as they arrive; a chat template without ids would give them to other calls."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    calling = {"role": "assistant", "tool_calls": [{"id": name, "function": {"name": "f"}} for name in "ab"]}
    first, second = ({"role": "tool", "tool_call_id": name, "content": name} for name in "ab")
    body = chat_request(tools=tools, messages=[USER, calling, second, first, USER])
    body.check(model="m")
    assert body.for_engine(model="policy")["messages"] == [USER, calling, first, second, USER]
    for results in ([first], [first, first], [first, second | {"tool_call_id": "c"}], []):
        with pytest.raises(ApiError, match=r"messages\[1\]\.tool_calls has the ids .*: send one result for each call"):
            chat_request(tools=tools, messages=[USER, calling, *results, USER]).check(model="m")


def test_prompt_ids_equal_a_rollouts_prompt(chat_format: ChatFormat) -> None:
    """A question, as a string or in parts, gives the same tokens as in training."""
    assert prompt_ids([USER], chat_format, context=CONTEXT) == chat_format.prompt_ids(QUESTION)
    parts = [{"type": "text", "text": QUESTION[:5]}, {"type": "text", "text": QUESTION[5:]}]
    assert prompt_ids([{"role": "user", "content": parts}], chat_format, context=CONTEXT) == chat_format.prompt_ids(
        QUESTION
    )


def test_prompt_ids_of_a_conversation_equal_the_loops(chat_format: ChatFormat) -> None:
    """Calls and outputs in an earlier answer give the tokens of the agent loop."""
    content = FIRST_TURN + outputs_text(FIRST_REPLY) + LAST_TURN
    outputs = [{"role": "tool", "content": text} for text in FIRST_REPLY]
    turns = [{"role": "assistant", "content": FIRST_TURN}, *outputs, {"role": "assistant", "content": LAST_TURN}]
    whole = chat_format.encode_conversation([{"role": "system", "content": SYSTEM}, USER, *turns, USER])
    messages = [USER, {"role": "assistant", "content": content}, USER]
    assert prompt_ids(messages, chat_format, context=CONTEXT) == whole.token_ids


def test_prompt_ids_prefix_only_the_first_question(chat_format: ChatFormat) -> None:
    """Later questions have no prefix."""
    prefixed = ChatFormat(chat_format.tokenizer, system_prompt=SYSTEM, prompt_prefix="PRE ")
    text = prefixed.decode(prompt_ids([USER, {"role": "assistant", "content": "a"}, USER], prefixed, context=CONTEXT))
    assert text.count("PRE ") == 1 and text.index("PRE ") < text.index(QUESTION)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_prompt_ids_add_the_tool_to_a_system_message(chat_format: ChatFormat, role: str) -> None:
    """A system message that describes tools is not changed."""
    own = f"Be brief.\n\n{chat_format.tools.section()}"
    expected = chat_format.conversation_prompt_ids([{"role": "system", "content": own}, USER])
    assert prompt_ids([{"role": role, "content": "Be brief."}, USER], chat_format, context=CONTEXT) == expected
    assert prompt_ids([{"role": role, "content": own}, USER], chat_format, context=CONTEXT) == expected


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([USER, {"role": "assistant", "content": "x"}], "the last message must be the user's"),
        ([{"role": "tool", "content": "x"}, USER], "messages[0].role 'tool'"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}, USER], "messages[0].tool_calls"),
        ([{"role": "user", "content": None}], "messages[0].content must be a string"),
        ([{**USER, "name": "ann"}], "messages[0].name is not supported: write the name in the content"),
        ([{"role": "assistant", "content": "x", "prefix": True}, USER], "messages[0].prefix is not supported"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0] must be"),
        ([{"content": "x"}], "messages[0].role None"),
    ],
)
def test_prompt_ids_invalid_message_is_rejected(chat_format: ChatFormat, messages: list, message: str) -> None:
    """The error names the index and the field."""
    with pytest.raises(ApiError, match=re.escape(message)) as error:
        prompt_ids(messages, chat_format, context=CONTEXT)
    assert error.value.status == 400


def test_prompt_ids_lone_surrogate_is_rejected(chat_format: ChatFormat) -> None:
    """The tokenizer would fail with an unclear error."""
    with pytest.raises(ApiError, match=r"messages\[0\].content has a lone surrogate") as error:
        prompt_ids([{"role": "user", "content": "half \ud800"}], chat_format, context=CONTEXT)
    assert error.value.status == 400


def test_prompt_ids_too_long_text_is_rejected_early(chat_format: ChatFormat) -> None:
    """The number of characters is enough to reject it."""
    long = "x" * (CONTEXT * chat_format.longest_token)
    with pytest.raises(ApiError, match=f"has {CONTEXT} tokens; the messages have .* characters: shorten") as error:
        prompt_ids([{"role": "user", "content": long}], chat_format, context=CONTEXT)
    assert (error.value.status, error.value.code) == (400, "context_length_exceeded")


def test_sampling_too_many_tokens_names_max_tokens() -> None:
    """A prompt that fits, with too many requested tokens."""
    with pytest.raises(ApiError, match="which leaves 60 of the 100 requested: lower max_tokens") as error:
        chat_request(max_tokens=100).sampling(prompt_tokens=40, context=100, max_turns=3)
    assert error.value.param == "max_tokens"
