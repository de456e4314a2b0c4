"""Requests, limits and reward of one episode of an agent's program."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.rollout.agent_program.conversation import Conversations
from rstar2_train.rollout.agent_program.episode import MAX_WAITING, AgentEpisode
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.utils.api_error import ApiError
from tests.support.token_arrays import logprob_array, token_array

BODY: dict[str, Any] = {"model": "gpt", "messages": [{"role": "user", "content": "Hello."}]}


class Engine:
    """Samples one token and the end of the turn, when `open` is set."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self._chat_format = chat_format
        self.open = asyncio.Event()
        self.open.set()
        self.requests: list[dict[str, Any]] = []
        self.running = self.most = 0
        self.error: Exception | None = None

    async def __call__(self, token_ids: list[int], *, max_tokens: int, turn: int) -> SampledTurn:
        self.requests.append({"tokens": len(token_ids), "max_tokens": max_tokens, "turn": turn})
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.open.wait()
        finally:
            self.running -= 1
        if self.error:
            raise self.error
        ids = [*self._chat_format.encode("2"), self._chat_format.end_of_turn_id][:max_tokens]
        finish = "stop" if len(ids) == 2 else "length"
        return SampledTurn(token_array(ids), logprob_array([-0.5] * len(ids)), finish, [("v1", 0)])  # type: ignore[arg-type]


def episode(
    chat_format: ChatFormat, engine: Engine, *, tokens: int = 400, turns: int = 4, seconds: float = 60
) -> AgentEpisode:
    conversations = Conversations(chat_format, max_calls=4)
    return AgentEpisode(conversations, engine, sequence_tokens=tokens, max_turns=turns, seconds=seconds)


async def test_episode_response_has_vllms_fields(chat_format: ChatFormat) -> None:
    """The response has the exact tokens of the engine and their log-probabilities; sampling parameters are ignored."""
    engine = Engine(chat_format)
    request = BODY | {"temperature": 1.9, "top_p": 0.1, "seed": 3, "logprobs": True, "max_tokens": 7, "n": 1}
    wanted, reply = await episode(chat_format, engine).complete(request)
    prompt = chat_format.conversation_prompt_ids(BODY["messages"])
    (choice,) = reply["choices"]
    ids = [*chat_format.encode("2"), chat_format.end_of_turn_id]
    assert (reply["prompt_token_ids"], choice["token_ids"], choice["finish_reason"]) == (prompt, ids, "stop")
    tokens = [(each["token"], each["logprob"]) for each in choice["logprobs"]["content"]]
    assert tokens == [(f"token_id:{token}", -0.5) for token in ids]
    assert reply["usage"] == {"prompt_tokens": len(prompt), "completion_tokens": 2, "total_tokens": len(prompt) + 2}
    assert engine.requests == [{"tokens": len(prompt), "max_tokens": 7, "turn": 0}] and not wanted.stream


@pytest.mark.parametrize(
    "change",
    [
        {"n": 2},
        {"stop": ["Observation:"]},
        {"logit_bias": {"5": 1}},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"prompt_logprobs": 1},
        {"reasoning_effort": "low"},
        {"top_logprobs": 5},
        {"parallel_tool_calls": False, "tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
async def test_episode_parameter_that_changes_sampling_is_rejected(
    chat_format: ChatFormat, change: dict[str, Any]
) -> None:
    """A parameter that the trainer would have to ignore, but the program relies on, is an error."""
    with pytest.raises(ApiError, match=f"{next(iter(change))}=.* is not supported"):
        await episode(chat_format, Engine(chat_format)).complete(BODY | change)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_cache_key": "k", "safety_identifier": "u", "service_tier": "auto", "modalities": ["text"]},
        {"tools": None, "tool_choice": "none", "parallel_tool_calls": False},
        {"tools": [], "tool_choice": "auto", "functions": [], "function_call": "none"},
        {"reasoning_effort": "medium", "verbosity": "medium", "ignore_eos": False, "best_of": 1, "echo": False},
        {"skip_special_tokens": True, "chat_template_kwargs": {}, "stop": None, "logit_bias": None},
    ],
    ids=lambda fields: " ".join(fields),
)
async def test_episode_accepts_values_that_change_nothing(chat_format: ChatFormat, fields: dict[str, Any]) -> None:
    """An agent's library sends the same defaults as a client of `rstar2 serve`."""
    _, reply = await episode(chat_format, Engine(chat_format)).complete(BODY | fields)
    assert reply["choices"][0]["finish_reason"] == "stop"


async def test_episode_requests_run_one_after_another(chat_format: ChatFormat) -> None:
    """Concurrent requests share the engine slot of the rollout; too many are rejected."""
    engine = Engine(chat_format)
    engine.open.clear()
    played = episode(chat_format, engine, turns=1000)
    requests = [asyncio.create_task(played.complete(BODY)) for _ in range(MAX_WAITING + 1)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="waiting requests") as error:
        await played.complete(BODY)
    assert error.value.status == 429
    engine.open.set()
    await asyncio.gather(*requests)
    assert (engine.most, len(engine.requests)) == (1, MAX_WAITING + 1)
    assert [request["turn"] for request in engine.requests] == list(range(MAX_WAITING + 1))


async def test_episode_limits_of_the_stage_are_noted(chat_format: ChatFormat) -> None:
    """Turns and tokens beyond the stage's limits are rejected, and the episode knows which limit it was."""
    engine = Engine(chat_format)
    played = episode(chat_format, engine, turns=1)
    await played.complete(BODY)
    with pytest.raises(ApiError, match="the episode has 1 turns, the limit of the stage"):
        await played.complete(BODY)
    assert played.limit == "max_turns"
    prompt = len(chat_format.conversation_prompt_ids(BODY["messages"]))
    played = episode(chat_format, engine, tokens=prompt)
    with pytest.raises(ApiError, match="shorten the messages") as error:
        await played.complete(BODY)
    assert (played.limit, error.value.code) == ("length", "context_length_exceeded")
    played = episode(chat_format, engine, tokens=prompt + 1)
    _, reply = await played.complete(BODY)
    assert (played.limit, reply["choices"][0]["finish_reason"]) == ("length", "length")
    played = episode(chat_format, engine)
    await played.complete(BODY | {"max_tokens": 1})
    assert played.limit is None  # the program's own limit


async def test_episode_takes_one_finite_reward(chat_format: ChatFormat) -> None:
    """The reward is a number in [0, 1], posted once, after a turn; it ends the episode."""
    played = episode(chat_format, Engine(chat_format))
    with pytest.raises(ApiError, match="no turn was sampled"):
        played.post_reward({"reward": 1})
    await played.complete(BODY)
    for reward in (float("nan"), float("inf"), -0.1, 1.1):
        with pytest.raises(ApiError, match=r"must be a number in \[0, 1\]"):
            played.post_reward({"reward": reward})
    for body in ({}, {"reward": None}, {"reward": 1, "rewards": 2}, [], {"reward": 1, "reason": "x" * 1001}):
        with pytest.raises(ValidationError):
            played.post_reward(body)
    with pytest.raises(ApiError, match="is not the id of a call"):
        played.post_reward({"reward": 1, "tool_errors": ["call_x"]})
    assert played.reward is None and not played.rewarded.is_set()
    played.post_reward({"reward": 0.5, "reason": "half"})
    with pytest.raises(ApiError, match=r"has the reward 0\.5: post it once"):
        played.post_reward({"reward": 1.0})
    with pytest.raises(ApiError, match="takes no further request"):
        await played.complete(BODY)
    assert (played.reward, played.reason, played.rewarded.is_set()) == (0.5, "half", True)


async def test_episode_engine_failure_ends_the_episode(chat_format: ChatFormat) -> None:
    """A lost engine fails the episode; the program gets status 503."""
    engine = Engine(chat_format)
    engine.error = EngineUnavailable("gone")
    played = episode(chat_format, engine)
    with pytest.raises(ApiError, match="the engines are lost") as error:
        await played.complete(BODY)
    assert error.value.status == 503 and played.failure.exception() is engine.error


async def test_episode_close_cancels_requests(chat_format: ChatFormat) -> None:
    """The requests of an episode that ends return an error; the engine's request is cancelled."""
    engine = Engine(chat_format)
    engine.open.clear()
    played = episode(chat_format, engine)
    request = asyncio.create_task(played.complete(BODY))
    while not engine.running:
        await asyncio.sleep(0)
    await played.close()
    with pytest.raises(ApiError, match="the episode has ended"):
        await request
    assert engine.running == 0


async def test_episode_generation_does_not_use_its_time(chat_format: ChatFormat) -> None:
    """Only the program's own time counts: an episode of long turns is not lost more often than others."""
    engine = Engine(chat_format)
    engine.open.clear()
    played = episode(chat_format, engine, seconds=0.05)
    request = asyncio.create_task(played.complete(BODY))
    while not engine.running:
        await asyncio.sleep(0)
    expired = asyncio.create_task(played.expire())
    await asyncio.sleep(0.2)
    assert not expired.done()
    engine.open.set()
    await request
    await expired
