"""The teacher behind an endpoint: rated tokens, repeated requests, and replies that are refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.objectives import Teacher
from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.openai_client import ServedModel
from rstar2_train.inference.teacher_client import TeacherClient
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.pipeline import remote_teacher
from rstar2_train.orchestrator.pipeline.remote_teacher import RemoteTeacher
from rstar2_train.orchestrator.stages import grpo
from rstar2_train.rollout.teacher_check import TeacherServers
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.trainer.types import TokenSequence
from rstar2_train.utils.auth import TEACHER_TOKEN
from rstar2_train.utils.ports import free_ports
from tests.support.fake_rollouts import CharacterFormat, FakeRollouts
from tests.support.stage_attempt import FakeTrainerGroup, fake_sessions

Answer = Callable[[int, dict[str, Any]], web.Response | Awaitable[web.Response]]
"""Number of the request from 0, its body -> reply."""


def scored(body: dict[str, Any], **changes: Any) -> web.Response:
    """Return the reply of vLLM: minus a tenth of its id is the log-probability of a token."""
    rows: list[Any] = [None]
    rows += [{str(token): {"logprob": -token / 10, "rank": 1, "decoded_token": "t"}} for token in body["prompt"][1:]]
    return web.json_response({"choices": [{"text": "", "prompt_logprobs": rows} | changes]})


@asynccontextmanager
async def server(answer: Answer, *, port: int = 0) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Run a server; yield its URL and the bodies of its requests."""
    bodies: list[dict[str, Any]] = []

    async def respond(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer t0k3n"
        bodies.append(await request.json())
        reply = answer(len(bodies) - 1, bodies[-1])
        return reply if isinstance(reply, web.Response) else await reply

    app = web.Application()
    app.router.add_post("/v1/completions", respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        assert site._server is not None
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}", bodies  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEACHER_TOKEN, "t0k3n")


def sequence(*ids: int) -> TokenSequence:
    return TokenSequence(np.array(ids, np.int32), np.arange(len(ids)) > 0)


GROUPS = [[sequence(5, 10, 20), sequence(5, 30)], [sequence(7, 40, 50, 60)]]


async def rate(url: str, groups: list[list[TokenSequence]], **times: float) -> list[list[list[float]]]:
    return await rate_by(TeacherServers.of_endpoint(Teacher(endpoint=url, model="big")), groups, **times)


async def rate_by(
    servers: TeacherServers, groups: list[list[TokenSequence]], **times: float
) -> list[list[list[float]]]:
    async with RemoteTeacher(servers, first_delay=0.01, **times) as teacher:
        result = await teacher.rate(groups)
    values = [[each.reference_logprobs for each in group] for group in result]
    return [[value.tolist() for value in group if value is not None] for group in values]


async def test_teacher_rates_each_token_in_its_place() -> None:
    """The tokens themselves are sent, and no more than their own log-probability is asked for."""
    async with server(lambda _, body: scored(body)) as (url, bodies):
        assert await rate(url, GROUPS) == [[[0, -1, -2], [0, -3]], [[0, -4, -5, -6]]]
    assert sorted(body["prompt"] for body in bodies) == [[5, 10, 20], [5, 30], [7, 40, 50, 60]]
    assert {(body["model"], body["prompt_logprobs"], body["max_tokens"]) for body in bodies} == {("big", 0, 1)}


async def test_teacher_engines_rate_in_turn() -> None:
    """Engines of spec.teacher have one model and the job's token."""
    async with (
        server(lambda _, body: scored(body)) as (left, of_left),
        server(lambda _, body: scored(body)) as (right, of_right),
    ):
        servers = TeacherServers((left, right), "t0k3n", "/models/big")
        assert await rate_by(servers, GROUPS) == [[[0, -1, -2], [0, -3]], [[0, -4, -5, -6]]]
    assert {len(of_left), len(of_right)} == {1, 2}


async def test_teacher_engines_may_still_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check waits for an engine that loads its model, and no longer than it may take."""
    monkeypatch.setattr(remote_teacher, "START_POLL_SECONDS", 0.01)
    (port,) = free_ports(1)
    servers = TeacherServers((f"http://127.0.0.1:{port}",), "t0k3n", start_seconds=60)
    async with RemoteTeacher(servers) as teacher:
        waiting = asyncio.create_task(teacher._until_started(teacher._clients[0], time.monotonic() + 60))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        async with server(lambda _, body: scored(body), port=port):
            await asyncio.wait_for(waiting, 60)
    async with RemoteTeacher(replace(servers, start_seconds=0.05)) as teacher:
        with pytest.raises(StageFailed, match="Cannot connect") as caught:
            await teacher.check(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({}))), Path(), longest=1)
    assert (caught.value.reason, caught.value.retryable) == ("ServerUnavailable", True)


async def test_teacher_sequence_without_trained_token_is_not_sent() -> None:
    """A rollout whose budget was used up before its first token: its prompt may be a single token."""
    untrained = TokenSequence(np.array([9], np.int32), np.array([False]))
    async with server(lambda _, body: scored(body)) as (url, bodies):
        assert await rate(url, [[untrained, sequence(5, 30)]]) == [[[0], [0, -3]]]
    assert len(bodies) == 1


class Accepted(RemoteTeacher):
    """A teacher whose server is not checked: the tokens of these rollouts are of no tokenizer."""

    async def check(self, tokenizer: object, model: Path, *, longest: int) -> None:
        assert model.name == "base" and longest > 0


async def test_stage_trains_on_the_values_of_the_server(stage: Callable[..., StageContext]) -> None:
    """Each batch is rated before its update; stored rollouts of an attempt that the server failed are rated again."""
    down = True

    def answer(number: int, body: dict[str, Any]) -> web.Response:
        return web.Response(status=400) if number > 4 and down else scored(body)

    rated: list[TokenSequence] = []

    def collect(group: FakeTrainerGroup) -> None:
        rated.extend(sequence for sequences in group.groups for sequence in sequences)

    sessions = fake_sessions(FakeRollouts(), chat_format=CharacterFormat(), on_step=collect)
    async with server(answer) as (url, _):
        objective = {"type": "Distillation", "teacher": {"endpoint": url, "model": "big"}}
        with pytest.raises(StageFailed, match="the teacher rejects a request"):
            await grpo.run(stage(objective=objective), replace(sessions, teacher=Accepted))
        down, first = False, len(rated)
        ctx = stage(attempt=2, objective=objective)
        outcome = await grpo.run(ctx, replace(sessions, teacher=Accepted))
    assert outcome.outcome == "completed" and 0 < first < len(rated)
    for sequence in rated:
        assert sequence.reference_logprobs is not None
        assert sequence.reference_logprobs[1:] == pytest.approx(-sequence.ids[1:] / 10)
    assert "time/teacher_seconds" in journal_file(ctx.state.root).read_text()


@pytest.mark.parametrize("status", [200, 404, 408, 429, 500, 503])
async def test_teacher_failed_requests_are_repeated(status: int) -> None:
    """A busy or restarting server, or its ingress, costs time only; Retry-After delays the repetition."""

    def answer(number: int, body: dict[str, Any]) -> web.Response:
        headers = {"Retry-After": "1"} if number == 0 else {}
        return web.Response(status=status, headers=headers, text="<html>") if number < 4 else scored(body)

    async with server(answer) as (url, bodies):
        started = asyncio.get_running_loop().time()
        assert await rate(url, GROUPS[1:]) == [[[0, -4, -5, -6]]]
        assert asyncio.get_running_loop().time() - started >= (0 if status in (200, 404) else 1)
    assert len(bodies) == 5


async def test_stop_request_ends_the_wait_for_the_server(stage: Callable[..., StageContext]) -> None:
    """A server that never answers does not delay a suspension."""

    async def answer(number: int, body: dict[str, Any]) -> web.Response:
        ctx.stopping.set()
        await released.wait()
        return scored(body)

    released = asyncio.Event()
    sessions = replace(fake_sessions(FakeRollouts(), chat_format=CharacterFormat()), teacher=Accepted)
    async with server(answer) as (url, bodies):
        ctx = stage(objective={"type": "Distillation", "teacher": {"endpoint": url, "model": "big"}})
        with pytest.raises(SuspendRequested):
            await asyncio.wait_for(grpo.run(ctx, sessions), 30)
        released.set()  # the end of the server waits for its requests
    assert bodies


async def test_teacher_that_never_answers_fails_the_stage() -> None:
    """The failure is that of a service: retried, never a fault of the rollouts."""
    async with server(lambda *_: web.Response(status=503, text="starting")) as (url, _):
        with pytest.raises(StageFailed, match=r"has given no usable answer for .* returned 503: starting") as caught:
            await rate(url, GROUPS, patience=0.05)
    assert (caught.value.reason, caught.value.retryable) == ("ServerUnavailable", True)
    with pytest.raises(StageFailed, match="Cannot connect") as caught:
        await rate("http://127.0.0.1:1", GROUPS, patience=0.05)
    assert caught.value.retryable


async def test_teacher_rejected_request_fails_the_stage() -> None:
    """A repetition cannot help, and the requests in flight end."""
    async with server(lambda *_: web.Response(status=400, text="too long")) as (url, _):
        with pytest.raises(StageFailed, match=r"the teacher rejects a request: .*returned 400: too long") as caught:
            await rate(url, GROUPS)
    assert (caught.value.reason, caught.value.retryable) == ("BadConfiguration", False)


async def test_teacher_engine_of_before_an_edit_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is replaced it rejects longer sequences, which is no fault of the job."""
    monkeypatch.setattr(remote_teacher, "START_POLL_SECONDS", 0.01)
    short = True
    async with server(lambda n, body: web.Response(status=400) if short and n < 9 else scored(body)) as (url, bodies):
        servers = TeacherServers((url,), "t0k3n", "/models/big", start_seconds=60)
        assert (await rate_by(servers, GROUPS))[0] == [[0, -1, -2], [0, -3]] and len(bodies) > 9
        async with RemoteTeacher(servers) as teacher:
            served = [ServedModel("/models/big", "", length) for length in (4, 4, 6, 4)]
            monkeypatch.setattr(teacher._clients[0], "models", lambda: asyncio.sleep(0, [served.pop(0)]))
            for replaced in (True, True, False):
                assert await teacher._is_replaced(teacher._clients[0], 5, time.monotonic() + 60) == replaced
            with pytest.raises(StageFailed, match="is 4 tokens, but a sequence of the job may have 5") as caught:
                await teacher._is_replaced(teacher._clients[0], 5, 0.0)
    assert (caught.value.reason, caught.value.retryable) == ("ServerUnavailable", True)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (None, "returned no usable prompt_logprobs"),
        ([None], "1 entries for 2 tokens"),
        ([None, None], "no value of token 30"),
        ([None, {"31": {"logprob": -1.0}}], "'30'"),
        ([None, {"30": {"logprob": 3.5}}], "token 30 is 3.5.*default --logprobs-mode"),
        ([None, {"30": {"logprob": None}}], "token 30 is None"),
        ([None, {"30": {"logprob": float("nan")}}], "token 30 is nan"),
        ([None, {"30": {"logprob": float("-inf")}}], "token 30 is -inf"),
        ([None, {"30": {"logprob": False}}], "token 30 is False"),
        ([None, {"30": -1.0}], "TypeError"),
    ],
)
async def test_teacher_unusable_values_are_refused(rows: Any, reason: str) -> None:
    """Logits, values of other tokens, missing ones and NaN never reach the loss."""
    async with server(lambda _, body: scored(body, prompt_logprobs=rows)) as (url, _), EngineSession() as session:
        client = TeacherClient(url, token="t0k3n", session=session, model="big")
        with pytest.raises(EngineRejected, match=reason):
            await client.score([5, 30])
