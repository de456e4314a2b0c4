"""A served model, with the official client and with plain requests: answers, streams, errors and restarts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import psutil
import pytest

from rstar2_train.serving.text import outputs_text
from tests.integration.serving.conftest import TOKEN, Server
from tests.support.engine import FIRST_REPLY, FIRST_TURN, LAST_TURN, QUESTION, SYSTEM

ENGINE = "vllm.entrypoints.openai.api_server"
MESSAGES = [{"role": "user", "content": QUESTION}]
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


async def test_answer_has_calls_and_outputs_in_order(server: Server, client) -> None:
    """The content of one message, with the reason of the loop and the usage."""
    (model,) = (await client.models.list()).data
    answer = await client.chat.completions.create(model=model.id, messages=MESSAGES, temperature=0)
    (choice,) = answer.choices
    assert (server.model, model.id) == ("test/rl", "test/rl")
    assert choice.message.content == WHOLE
    assert (choice.finish_reason, choice.model_extra["stop_reason"]) == ("stop", "answered")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_streamed_answer_equals_the_complete_one(server: Server, client) -> None:
    """In pieces, with the usage at the end."""
    request = {"model": server.model, "messages": MESSAGES, "temperature": 0}
    whole = await client.chat.completions.create(**request)
    stream = await client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    events = [event async for event in stream]
    pieces = [event.choices[0].delta.content or "" for event in events[:-1]]
    assert "".join(pieces) == WHOLE
    assert outputs_text(FIRST_REPLY) in pieces and len(pieces) > 3
    assert [event.choices[0].finish_reason for event in events[:-1]] == [None] * (len(pieces) - 1) + ["stop"]
    assert events[-1].choices == [] and events[-1].usage == whole.usage


async def test_conversation_continues_token_for_token(server: Server, client) -> None:
    """The prompt of the next answer is the whole conversation, with the same tokens."""
    first = await client.chat.completions.create(model=server.model, messages=MESSAGES, temperature=0)
    more = [*MESSAGES, {"role": "assistant", "content": first.choices[0].message.content}, *MESSAGES]
    second = await client.chat.completions.create(model=server.model, messages=more, temperature=0, max_tokens=1)
    # Prompt, answer with its end of turn, and the next question, which takes fewer tokens than with the system prompt.
    fresh, before = first.usage.prompt_tokens, first.usage.total_tokens
    assert before < second.usage.prompt_tokens < before + fresh
    assert second.choices[0].finish_reason == "length"


async def test_answer_ends_at_stop_string_or_max_tokens(server: Server, client) -> None:
    """A stop string inside a call prevents the call."""
    request = {"model": server.model, "messages": MESSAGES, "temperature": 0}
    stopped = await client.chat.completions.create(**request, stop="\\boxed")
    assert stopped.choices[0].message.content == WHOLE.partition("\\boxed")[0]
    assert (stopped.choices[0].finish_reason, stopped.choices[0].model_extra["stop_reason"]) == ("stop", "stop_string")
    in_call = await client.chat.completions.create(**request, stop=["</tool_call>"])
    assert in_call.choices[0].message.content == FIRST_TURN.partition("</tool_call>")[0]
    short = await client.chat.completions.create(**request, max_tokens=5)
    assert (short.choices[0].finish_reason, short.usage.completion_tokens) == ("length", 5)


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_tools_are_forwarded_and_not_run(server: Server, client, streamed: bool) -> None:
    """The engine parses the calls; the client runs them."""
    messages = [{"role": "system", "content": SYSTEM}, *MESSAGES]
    request = {"model": server.model, "messages": messages, "temperature": 0, "tools": [WEATHER], "stop": ["\n<tool"]}
    if streamed:
        events = [event async for event in await client.chat.completions.create(**request, stream=True)]
        calls = [call for event in events for call in event.choices[0].delta.tool_calls or ()]
        name, written = calls[0].function.name, "".join(call.function.arguments or "" for call in calls)
        model, reason = events[0].model, events[-1].choices[0].finish_reason
    else:
        answer = await client.chat.completions.create(**request)
        (call,) = answer.choices[0].message.tool_calls
        name, written = call.function.name, call.function.arguments
        model, reason = answer.model, answer.choices[0].finish_reason
    assert (model, name, reason) == (server.model, "execute_python_code_with_standard_io", "tool_calls")
    assert "print(12+30)" in written


async def test_unsupported_request_gets_openais_error(server: Server, client) -> None:
    """The error names the parameter or has the code of OpenAI."""
    ask = client.chat.completions.create
    for param, value in (("n", 2), ("logprobs", True), ("tool_choice", "required"), ("temperature", 3)):
        with pytest.raises(openai.BadRequestError) as rejection:
            await ask(model=server.model, messages=MESSAGES, **{param: value})
        assert rejection.value.param == param
    with pytest.raises(openai.BadRequestError) as rejection:
        await ask(model=server.model, messages=[{"role": "user", "content": "12 " * 2000}])
    assert rejection.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as rejection:
        await ask(model=server.model, messages=MESSAGES, max_tokens=100_000)
    assert rejection.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await ask(model="another", messages=MESSAGES)


async def test_invalid_body_is_rejected_early(server: Server) -> None:
    """Invalid JSON, too many tokens, and too many bytes."""

    async def rejection(body: str) -> dict[str, Any]:
        answer = await http.post(f"{server.url}/v1/chat/completions", content=body, timeout=60)
        return {"status": answer.status_code} | answer.json()["error"]

    long = {"model": server.model, "messages": [{"role": "user", "content": "x" * 10_000_000}]}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        broken = await rejection('{"model": "m",}')
        assert (broken["status"], broken["param"]) == (400, None)
        assert "not valid JSON" in broken["message"] and "at character 14" in broken["message"]
        too_long = await rejection(json.dumps(long))
        assert (too_long["status"], too_long["code"]) == (400, "context_length_exceeded")
        too_large = await rejection("x" * 2**26)
        assert too_large["status"] == 413 and "32 MiB" in too_large["message"]


async def test_token_protects_endpoint_and_engine(server: Server, client) -> None:
    """Without the token no route answers; the engine's other routes are not reachable."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model=server.model, messages=MESSAGES)
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        for path in ("/pause", "/collective_rpc", "/update_weight_version", "/rstar2/generate", "/v1/completions"):
            assert (await http.post(server.url + path, json={})).status_code == 404
            assert (await http.post(server.engine_url + path, json={})).status_code == 401


async def metrics(server: Server, *names: str) -> float:
    """Return the sum of some of the engine's metrics."""
    async with httpx.AsyncClient(timeout=60) as http:
        lines = (await http.get(f"{server.engine_url}/metrics")).text.splitlines()
    starts = tuple(f"vllm:{name}{{" for name in names)
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(starts))


FINISHED = "request_success_total"


async def test_disconnect_aborts_answers_in_the_engine(server: Server) -> None:
    """Many answers are pending when all clients disconnect; not all of their turns are finished."""
    count = 128
    async with asyncio.timeout(300):
        while await finished_turns(server, count) == 2 * count:
            pass  # this process paused, and disconnected after the last answer


async def finished_turns(server: Server, count: int) -> float:
    """Start answers, disconnect when the first one arrives, and return how many of their turns finish."""
    before = await metrics(server, FINISHED)
    body = {"model": server.model, "messages": MESSAGES, "temperature": 0, "stream": True}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(headers=headers, timeout=None, limits=limits) as http:

        async def receive() -> None:
            async with http.stream("POST", f"{server.url}/v1/chat/completions", json=body) as answer:
                async for _ in answer.aiter_bytes():
                    started.set()

        started, answers = asyncio.Event(), [asyncio.create_task(receive()) for _ in range(count)]
        await started.wait()
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
    while await metrics(server, "num_requests_running", "num_requests_waiting"):
        await asyncio.sleep(0.05)
    return await metrics(server, FINISHED) - before


@pytest.mark.parametrize("streamed", [False, True])
async def test_disconnect_during_a_call_ends_the_answer(server: Server, client, streamed: bool) -> None:
    """Its first turn was sampled; its second turn is not."""
    before = await metrics(server, FINISHED)
    request = {"model": server.model, "messages": MESSAGES, "temperature": 0}
    with stopped(server.child("rstar2_train.judge", "api")):
        answering = asyncio.ensure_future(
            _stream(client, request) if streamed else client.chat.completions.create(**request)
        )
        while await metrics(server, FINISHED) == before:
            assert not answering.done()
            await asyncio.sleep(0.05)
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        while is_connected(server):  # the judge must not answer before the server has seen the disconnect
            await asyncio.sleep(0.05)
    await client.chat.completions.create(**request)
    assert await metrics(server, FINISHED) - before == 1 + 2


def is_connected(server: Server) -> bool:
    """Return whether the server has a connection from a client."""
    port = int(server.url.rpartition(":")[2])
    connections = server.process.net_connections("tcp")
    return any(each.laddr.port == port and each.status != psutil.CONN_LISTEN for each in connections)


async def test_64_concurrent_conversations(server: Server, client) -> None:
    """All answers are correct."""
    request = {"model": server.model, "messages": MESSAGES, "temperature": 0}
    answers = await asyncio.gather(*(client.chat.completions.create(**request) for _ in range(64)))
    assert {answer.choices[0].message.content for answer in answers} == {WHOLE}


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


async def test_unreachable_judge_is_an_error(server: Server, client) -> None:
    """The error arrives after the patience, also in a stream; later answers are correct."""
    request = {"model": server.model, "messages": MESSAGES, "temperature": 0}
    with stopped(server.child("rstar2_train.judge", "api")):
        whole, streamed = await asyncio.gather(
            client.chat.completions.create(**request), _stream(client, request), return_exceptions=True
        )
    assert isinstance(whole, openai.InternalServerError)
    assert (whole.status_code, whole.code) == (503, "judge_unavailable")
    assert isinstance(streamed, openai.APIError) and "the code judge is unavailable" in streamed.message
    answer = await client.chat.completions.create(**request)
    assert answer.choices[0].message.content == WHOLE


async def _stream(client: openai.AsyncOpenAI, request: dict) -> str:
    return "".join(
        [event.choices[0].delta.content async for event in await client.chat.completions.create(**request, stream=True)]
    )


async def test_killed_judge_worker_is_restarted(server: Server, client) -> None:
    """Answers fail with judge_unavailable until the new worker is ready."""
    worker = server.child("rstar2_train.judge", "worker")
    worker.kill()
    request = {"model": server.model, "messages": MESSAGES, "temperature": 0}
    deadline = time.monotonic() + 300
    while True:
        try:
            answer = await client.chat.completions.create(**request)
            break
        except openai.InternalServerError as error:
            assert error.code == "judge_unavailable" and time.monotonic() < deadline
    assert answer.choices[0].message.content == WHOLE
    assert server.child("rstar2_train.judge", "worker").pid != worker.pid


def test_chat_prints_calls_and_outputs(server: Server) -> None:
    """A question as an argument or on standard input; without the token it fails."""
    argv = [sys.executable, "-m", "rstar2_train.cli", "chat", "--url", server.url, "--temperature", "0"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("RSTAR2_SERVE")}
    inside = outside | {"RSTAR2_SERVE_TOKEN": TOKEN, "COLUMNS": "100"}
    done = subprocess.run([*argv, QUESTION], env=inside, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.strip("│ ") for line in done.stdout.splitlines()]
    printed = [line for line in lines if line in ("print(12+30)", "print(6*7)", *FIRST_REPLY, "\\boxed{42}")]
    assert printed == ["print(12+30)", "print(6*7)", *FIRST_REPLY, "\\boxed{42}"]
    piped = subprocess.run(argv, input=QUESTION, env=inside, capture_output=True, text=True)
    assert (piped.returncode, piped.stdout) == (0, done.stdout)
    stranger = subprocess.run([*argv, QUESTION], env=outside, capture_output=True, text=True)
    assert stranger.returncode == 1 and "token" in stranger.stderr


@contextmanager
def second_endpoint(server: Server, **tokens: str) -> Iterator[subprocess.Popen]:
    """Run another endpoint with the engine and judge of the server."""
    judge = server.child("rstar2_train.judge", "api")
    port = judge.cmdline()[judge.cmdline().index("--port") + 1]
    argv = [sys.executable, "-m", "rstar2_train.cli", "serve", str(server.folder), "--port", "0", "--grace", "60"]
    argv += ["--endpoint", server.engine_url, "--judge", f"http://127.0.0.1:{port}"]
    names = ("RSTAR2_ENGINE_TOKEN", "RSTAR2_JUDGE_TOKEN")
    parts = zip(names, (server.child(ENGINE), judge), strict=True)
    env = (
        os.environ | {name: process.environ()[name] for name, process in parts} | {"RSTAR2_SERVE_TOKEN": TOKEN} | tokens
    )
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_serve_with_running_engine_and_judge(server: Server) -> None:
    """No child process is started. SIGTERM lets an answer in progress finish."""
    with second_endpoint(server) as process:
        url = json.loads(process.stdout.readline())["url"]
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as client:
            request = {"model": server.model, "messages": MESSAGES, "temperature": 0}
            stream = await client.chat.completions.create(**request, stream=True)
            text = (await anext(stream)).choices[0].delta.content
            assert psutil.Process(process.pid).children() == []
            process.terminate()
            text += "".join([event.choices[0].delta.content or "" async for event in stream])
        assert text == WHOLE
        assert process.wait(300) == 0


@pytest.mark.parametrize("name", ["RSTAR2_ENGINE_TOKEN", "RSTAR2_JUDGE_TOKEN"])
def test_serve_wrong_token_names_the_variable(server: Server, name: str) -> None:
    """For the token of the engine and of the judge."""
    with second_endpoint(server, **{name: "wrong" * 5}) as process:
        error = process.communicate(timeout=300)[1]
        assert process.returncode == 1 and "bearer token" in error and name in error
