"""The endpoint of agents with OpenAI's official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import openai
import pytest

from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.agent_program.conversation import Conversations
from rstar2_train.rollout.agent_program.endpoint import AgentEndpoint
from rstar2_train.rollout.agent_program.episode import AgentEpisode
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.tools.schema import call_text
from tests.support.chat_bodies import BODIES, post
from tests.support.model_fixtures import chat_format, model_folder
from tests.support.token_arrays import logprob_array, token_array

__all__ = ["chat_format", "model_folder"]

HANGS = 77
"""Limit of tokens of a request that the engine does not answer."""
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "double", "description": "Doubles.", "parameters": PARAMETERS}}]


@pytest.fixture
async def episode(chat_format: ChatFormat) -> AgentEpisode:
    """An episode whose model calls `double`, then answers."""

    async def generate(token_ids: Sequence[int], *, max_tokens: int, turn: int) -> SampledTurn:
        if max_tokens == HANGS:
            await asyncio.Event().wait()
        text = "It is 8." if turn % 2 else f"Let me see. {call_text('double', {'a': 4})}"
        ids = [*chat_format.encode(text), chat_format.end_of_turn_id]
        return SampledTurn(token_array(ids), logprob_array([-0.25] * len(ids)), "stop", [("v1", 0)])

    conversations = Conversations(chat_format, max_calls=4)
    return AgentEpisode(conversations, generate, sequence_tokens=400_000, max_turns=10, seconds=60)


@pytest.fixture
async def client(episode: AgentEpisode) -> AsyncIterator[openai.OpenAI]:
    """The official client with the key of the episode. It works in threads, so that it never holds the loop itself."""
    async with AgentEndpoint() as endpoint, endpoint.serve(episode) as key:
        url = f"{endpoint.url}/v1"
        with await asyncio.to_thread(openai.OpenAI, base_url=url, api_key=key, max_retries=0) as client:
            yield client


async def test_endpoint_official_client_calls_tools(
    client: openai.OpenAI, episode: AgentEpisode, chat_format: ChatFormat
) -> None:
    """The usual loop with tools, whole and streamed: one sequence with the tokens that were sampled."""
    prompt_ids = await asyncio.to_thread(_call_tools, client, chat_format)
    segments, calls = episode.conversations.tree.segments()
    assert [segment.kind for segment in segments] == ["prompt", "model", "tool", "model"]
    assert segments[0].token_ids.tolist() == prompt_ids
    assert [(each.name, each.status, each.response) for each in calls] == [("double", "error", "8")]
    assert episode.reward == 0.5


def _call_tools(client: openai.OpenAI, chat_format: ChatFormat) -> list[int]:
    """Return the ids of the first prompt."""
    messages: list = [{"role": "user", "content": "Double 4."}]
    reply = client.chat.completions.create(model="any", messages=messages, tools=TOOLS, logprobs=True)
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("double", {"a": 4})
    assert choice.logprobs.content[0].token == f"token_id:{choice.token_ids[0]}"
    assert chat_format.model_text(choice.token_ids).startswith("Let me see. <tool_call>")
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "8"}]
    chunks = list(
        client.chat.completions.create(
            model="any", messages=messages, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "It is 8."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None, "stop"]
    assert chunks[0].prompt_token_ids[: len(reply.prompt_token_ids)] == reply.prompt_token_ids
    assert chunks[-1].usage.completion_tokens == len(chunks[0].choices[0].token_ids)
    client.post("/reward", body={"reward": 0.5, "tool_errors": [call.id]}, cast_to=object)
    return reply.prompt_token_ids


async def test_endpoint_official_client_reads_errors(client: openai.OpenAI, episode: AgentEpisode) -> None:
    """Errors have OpenAI's form, so that the client raises its own exceptions with the message."""
    await asyncio.to_thread(_read_errors, client)
    assert not episode.conversations.tree.turns


def _read_errors(client: openai.OpenAI) -> None:
    messages: list = [{"role": "user", "content": "Double 4."}]
    assert [model.id for model in client.models.list()] == ["policy"]
    with pytest.raises(openai.BadRequestError, match="n=2 is not supported"):
        client.chat.completions.create(model="any", messages=messages, n=2)
    with pytest.raises(openai.BadRequestError, match="messages: List should have at least 1 item"):
        client.chat.completions.create(model="any", messages=[])
    with pytest.raises(openai.BadRequestError, match="no turn was sampled"):
        client.post("/reward", body={"reward": 1.0}, cast_to=object)
    with pytest.raises(openai.NotFoundError):
        client.get("/weights", cast_to=object)
    with pytest.raises(openai.AuthenticationError, match="belongs to no running episode"):
        client.with_options(api_key="other").chat.completions.create(model="any", messages=messages)


async def test_endpoint_lost_client_cancels_its_request(client: openai.OpenAI, episode: AgentEpisode) -> None:
    """A client that gives up frees the engine slot; its turn is not recorded, and the next request is served."""
    request: dict = {"model": "any", "messages": [{"role": "user", "content": "Double 4."}]}
    impatient = client.with_options(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        await asyncio.to_thread(impatient.chat.completions.create, **request, max_tokens=HANGS)
    await asyncio.to_thread(client.chat.completions.create, **request)
    assert len(episode.conversations.tree.turns) == 1


@pytest.mark.usefixtures("loop_is_never_held")
@pytest.mark.parametrize("name", BODIES)
async def test_endpoint_large_body_holds_no_loop(episode: AgentEpisode, name: str) -> None:
    """Each body is answered, or refused with a reason."""
    async with AgentEndpoint() as endpoint, endpoint.serve(episode) as key:
        status, answer = await post(f"{endpoint.url}/v1/chat/completions", BODIES[name], key=key)
    assert status in (200, 400, 413), answer[:500]
    assert b"choices" in answer or b"message" in answer


@pytest.mark.usefixtures("loop_is_never_held")
async def test_endpoint_long_turn_holds_no_loop(chat_format: ChatFormat) -> None:
    """A turn of 60,000 tokens with log-probabilities, whole and streamed."""
    ids = chat_format.encode("Let me see. ")
    ids = [*(ids * (60_000 // len(ids))), chat_format.end_of_turn_id]
    turn = SampledTurn(token_array(ids), logprob_array([-0.25] * len(ids)), "stop", [("v1", 0)])

    async def generate(token_ids: Sequence[int], *, max_tokens: int, turn: int) -> SampledTurn:
        return sampled

    sampled = turn
    conversations = Conversations(chat_format, max_calls=4)
    episode = AgentEpisode(conversations, generate, sequence_tokens=100_000, max_turns=10, seconds=60)
    body = {"messages": [{"role": "user", "content": "Double 4."}], "logprobs": True}
    async with AgentEndpoint() as endpoint, endpoint.serve(episode) as key:
        for stream in (False, True):
            status, answer = await post(f"{endpoint.url}/v1/chat/completions", body | {"stream": stream}, key=key)
            assert status == 200 and answer.count(b"token_id:") == len(ids)
