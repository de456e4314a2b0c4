"""A served model asked by the official client and by hand: the loop on the server, and what goes wrong around it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import httpx
import openai
import psutil
import pytest

from rstar2_train.serving.text import outputs_text
from tests.integration.serving.conftest import TOKEN, Server
from tests.support.engine import FIRST_REPLY, FIRST_TURN, LAST_TURN, QUESTION, SYSTEM

ENGINE = "vllm.entrypoints.openai.api_server"
ASKED = [{"role": "user", "content": QUESTION}]
WHOLE = FIRST_TURN + outputs_text(FIRST_REPLY) + LAST_TURN
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


async def test_an_answer_shows_its_calls_and_their_outputs_in_order(server: Server, client) -> None:
    (model,) = (await client.models.list()).data
    answer = await client.chat.completions.create(model=model.id, messages=ASKED, temperature=0)
    (choice,) = answer.choices
    assert (server.model, model.id) == ("test/rl", "test/rl")
    assert choice.message.content == WHOLE
    assert (choice.finish_reason, choice.model_extra["stop_reason"]) == ("stop", "answered")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_a_streamed_answer_is_the_same_piece_by_piece(server: Server, client) -> None:
    asked = {"model": server.model, "messages": ASKED, "temperature": 0}
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    events = [event async for event in stream]
    pieces = [event.choices[0].delta.content or "" for event in events[:-1]]
    assert "".join(pieces) == WHOLE
    assert outputs_text(FIRST_REPLY) in pieces and len(pieces) > 3
    assert [event.choices[0].finish_reason for event in events[:-1]] == [None] * (len(pieces) - 1) + ["stop"]
    assert events[-1].choices == [] and events[-1].usage == whole.usage


async def test_a_conversation_goes_on_from_what_it_was_told(server: Server, client) -> None:
    """The next prompt is the whole conversation so far, token for token."""
    first = await client.chat.completions.create(model=server.model, messages=ASKED, temperature=0)
    more = [*ASKED, {"role": "assistant", "content": first.choices[0].message.content}, *ASKED]
    second = await client.chat.completions.create(model=server.model, messages=more, temperature=0, max_tokens=1)
    # Prompt, answer with its end of turn, and the next question, which takes fewer tokens than with the system prompt.
    fresh, before = first.usage.prompt_tokens, first.usage.total_tokens
    assert before < second.usage.prompt_tokens < before + fresh
    assert second.choices[0].finish_reason == "length"


async def test_a_stop_string_and_max_tokens_end_an_answer(server: Server, client) -> None:
    asked = {"model": server.model, "messages": ASKED, "temperature": 0}
    stopped = await client.chat.completions.create(**asked, stop="\\boxed")
    assert stopped.choices[0].message.content == WHOLE.partition("\\boxed")[0]
    assert (stopped.choices[0].finish_reason, stopped.choices[0].model_extra["stop_reason"]) == ("stop", "stop_string")
    in_call = await client.chat.completions.create(**asked, stop=["</tool_call>"])
    assert in_call.choices[0].message.content == FIRST_TURN.partition("</tool_call>")[0]
    short = await client.chat.completions.create(**asked, max_tokens=5)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 5)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_clients_own_tools_are_passed_on_and_not_run(server: Server, client, streamed: bool) -> None:
    messages = [{"role": "system", "content": SYSTEM}, *ASKED]
    asked = {"model": server.model, "messages": messages, "temperature": 0, "tools": [WEATHER], "stop": ["\n<tool"]}
    if streamed:
        events = [event async for event in await client.chat.completions.create(**asked, stream=True)]
        calls = [call for event in events for call in event.choices[0].delta.tool_calls or ()]
        name, written = calls[0].function.name, "".join(call.function.arguments or "" for call in calls)
        model, reason = events[0].model, events[-1].choices[0].finish_reason
    else:
        answer = await client.chat.completions.create(**asked)
        (call,) = answer.choices[0].message.tool_calls
        name, written = call.function.name, call.function.arguments
        model, reason = answer.model, answer.choices[0].finish_reason
    assert (model, name, reason) == (server.model, "execute_python_code_with_standard_io", "tool_calls")
    assert "print(12+30)" in written


async def test_what_cannot_be_done_is_refused_in_openais_form(server: Server, client) -> None:
    ask = client.chat.completions.create
    for param, value in (("n", 2), ("logprobs", True), ("tool_choice", "auto"), ("temperature", 3)):
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(model=server.model, messages=ASKED, **{param: value})
        assert refused.value.param == param
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(model=server.model, messages=[{"role": "user", "content": "12 " * 2000}])
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(model=server.model, messages=ASKED, max_tokens=100_000)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await ask(model="another", messages=ASKED)


async def test_a_body_that_cannot_be_taken_is_refused_before_it_costs_anything(server: Server) -> None:
    async def refusal(body: str) -> dict[str, Any]:
        answer = await http.post(f"{server.url}/v1/chat/completions", content=body, timeout=60)
        return {"status": answer.status_code} | answer.json()["error"]

    long = {"model": server.model, "messages": [{"role": "user", "content": "x" * 10_000_000}]}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(headers=headers) as http:
        broken = await refusal('{"model": "m",}')
        assert (broken["status"], broken["param"]) == (400, None)
        assert "not valid JSON" in broken["message"] and "at character 14" in broken["message"]
        refused = await refusal(json.dumps(long))
        assert (refused["status"], refused["code"]) == (400, "context_length_exceeded")
        enormous = await refusal("x" * 2**26)
        assert enormous["status"] == 413 and "32 MiB" in enormous["message"]


async def test_nobody_is_served_without_the_token_nor_reaches_the_engines_other_routes(server: Server, client) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model=server.model, messages=ASKED)
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        for path in ("/pause", "/collective_rpc", "/update_weight_version", "/rstar2/generate", "/v1/completions"):
            assert (await http.post(server.url + path, json={})).status_code == 404
            assert (await http.post(server.engine_url + path, json={})).status_code == 401


async def metrics(server: Server, *names: str) -> float:
    """The sum of some of the engine's metrics."""
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"{server.engine_url}/metrics")).text.splitlines()
    starts = tuple(f"vllm:{name}{{" for name in names)
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(starts))


FINISHED = "request_success_total"


async def test_answers_are_given_up_in_the_engine_when_their_clients_go_away(server: Server) -> None:
    """All have begun when all are left: those that began last are never finished."""
    before = await metrics(server, FINISHED)
    body = {"model": server.model, "messages": ASKED, "temperature": 0, "stream": True}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(headers=headers, timeout=None) as http, AsyncExitStack() as answers:

        async def begin() -> None:
            asked = http.stream("POST", f"{server.url}/v1/chat/completions", json=body)
            answer = await answers.enter_async_context(asked)
            await anext(answer.aiter_bytes())

        await asyncio.gather(*(begin() for _ in range(64)))
    while await metrics(server, "num_requests_running", "num_requests_waiting"):
        await asyncio.sleep(0.05)
    assert await metrics(server, FINISHED) - before < 64


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_waits_for_a_call_ends_when_its_client_goes_away(
    server: Server, client, streamed: bool
) -> None:
    """Its first turn was sampled; its second never is."""
    before = await metrics(server, FINISHED)
    asked = {"model": server.model, "messages": ASKED, "temperature": 0}
    with stopped(server.child("rstar2_train.judge", "api")):
        asking = asyncio.ensure_future(_stream(client, asked) if streamed else client.chat.completions.create(**asked))
        while await metrics(server, FINISHED) == before:
            assert not asking.done()
            await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await client.chat.completions.create(**asked)
    assert await metrics(server, FINISHED) - before == 1 + 2


async def test_64_conversations_at_once(server: Server, client) -> None:
    asked = {"model": server.model, "messages": ASKED, "temperature": 0}
    answers = await asyncio.gather(*(client.chat.completions.create(**asked) for _ in range(64)))
    assert {answer.choices[0].message.content for answer in answers} == {WHOLE}


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


async def test_a_judge_that_is_away_is_an_error_and_not_a_wait(server: Server, client) -> None:
    asked = {"model": server.model, "messages": ASKED, "temperature": 0}
    with stopped(server.child("rstar2_train.judge", "api")):
        whole, streamed = await asyncio.gather(
            client.chat.completions.create(**asked), _stream(client, asked), return_exceptions=True
        )
    assert isinstance(whole, openai.InternalServerError)
    assert (whole.status_code, whole.code) == (503, "judge_unavailable")
    assert isinstance(streamed, openai.APIError) and "the code judge is down" in streamed.message
    answer = await client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == WHOLE


async def _stream(client: openai.AsyncOpenAI, asked: dict) -> str:
    return "".join(
        [event.choices[0].delta.content async for event in await client.chat.completions.create(**asked, stream=True)]
    )


async def test_a_judge_that_was_killed_is_started_again(server: Server, client) -> None:
    worker = server.child("rstar2_train.judge", "worker")
    worker.kill()
    asked = {"model": server.model, "messages": ASKED, "temperature": 0}
    deadline = time.monotonic() + 300
    while True:
        try:
            answer = await client.chat.completions.create(**asked)
            break
        except openai.InternalServerError as error:
            assert error.code == "judge_unavailable" and time.monotonic() < deadline
    assert answer.choices[0].message.content == WHOLE
    assert server.child("rstar2_train.judge", "worker").pid != worker.pid


def test_chat_in_the_terminal(server: Server) -> None:
    argv = [sys.executable, "-m", "rstar2_train.cli", "chat", "--url", server.url, "--temperature", "0"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("RSTAR2_SERVE")}
    inside = outside | {"RSTAR2_SERVE_TOKEN": TOKEN, "COLUMNS": "100"}
    asked = subprocess.run([*argv, QUESTION], env=inside, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    lines = [line.strip("│ ") for line in asked.stdout.splitlines()]
    shown = [line for line in lines if line in ("print(12+30)", "print(6*7)", *FIRST_REPLY, "\\boxed{42}")]
    assert shown == ["print(12+30)", "print(6*7)", *FIRST_REPLY, "\\boxed{42}"]
    piped = subprocess.run(argv, input=QUESTION, env=inside, capture_output=True, text=True)
    assert (piped.returncode, piped.stdout) == (0, asked.stdout)
    stranger = subprocess.run([*argv, QUESTION], env=outside, capture_output=True, text=True)
    assert stranger.returncode == 1 and "token" in stranger.stderr


@contextmanager
def beside(server: Server, **tokens: str) -> Iterator[subprocess.Popen]:
    """Another endpoint over the server's own engine and judge."""
    judge = server.child("rstar2_train.judge", "api")
    port = judge.cmdline()[judge.cmdline().index("--port") + 1]
    argv = [sys.executable, "-m", "rstar2_train.cli", "serve", str(server.folder), "--port", "0", "--grace", "60"]
    argv += ["--endpoint", server.engine_url, "--judge", f"http://127.0.0.1:{port}"]
    names = ("RSTAR2_ENGINE_TOKEN", "RSTAR2_JUDGE_TOKEN")
    theirs = {name: one.environ()[name] for name, one in zip(names, (server.child(ENGINE), judge), strict=True)}
    env = os.environ | theirs | {"RSTAR2_SERVE_TOKEN": TOKEN} | tokens
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_an_engine_and_a_judge_that_run_already(server: Server) -> None:
    """Nothing else is started. Asked to end, it finishes what is under way."""
    with beside(server) as process:
        url = json.loads(process.stdout.readline())["url"]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as client:
            asked = {"model": server.model, "messages": ASKED, "temperature": 0}
            stream = await client.chat.completions.create(**asked, stream=True)
            text = (await anext(stream)).choices[0].delta.content
            assert psutil.Process(process.pid).children() == []
            process.terminate()
            text += "".join([event.choices[0].delta.content or "" async for event in stream])
        assert text == WHOLE
        assert process.wait(60) == 0


@pytest.mark.parametrize("name", ["RSTAR2_ENGINE_TOKEN", "RSTAR2_JUDGE_TOKEN"])
def test_a_part_that_refuses_its_token_is_named(server: Server, name: str) -> None:
    with beside(server, **{name: "wrong" * 5}) as process:
        told = process.communicate(timeout=120)[1]
        assert process.returncode == 1 and "token is needed" in told.replace("required", "needed") and name in told
