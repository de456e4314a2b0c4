"""The HTTP endpoint of agents: OpenAI's chat completions, with a bearer key for each episode.

    POST /v1/chat/completions, POST /v1/reward, GET /v1/models

It runs in the process of the rollouts. It listens on loopback, or for programs in pods on all addresses.
A key exists as long as its episode: any other key is
rejected before the body is read.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from pydantic import ValidationError

from rstar2_train.rollout.agent_program.episode import MODEL, AgentEpisode
from rstar2_train.rollout.agent_program.pods import AgentPods
from rstar2_train.utils.api_error import ApiError
from rstar2_train.utils.json_steps import JsonTooLarge, dump_json, load_json
from rstar2_train.utils.loop_watch import watch_loop
from rstar2_train.utils.ports import LOOPBACK

MAX_BODY_BYTES = 1 << 23
"""Limit of a request body."""
MAX_FIELDS = 1024
"""Fields of an object in a large body, such as the parameters of a tool."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AgentEndpoint:
    """The server. Use as `async with`."""

    def __init__(self, pods: AgentPods | None = None) -> None:
        """`pods`: the pods that run the programs; None: this machine."""
        self._pods = pods
        self._episodes: dict[str, AgentEpisode] = {}
        self.url = ""
        """Base URL for programs on this machine."""
        self._watch = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/reward", self._reward)
        app.router.add_get("/v1/models", self._models)
        if self._pods is not None:
            self._pods.add_routes(app)
        self._watch.enter_context(watch_loop())
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        address = (LOOPBACK, 0) if self._pods is None else (None, self._pods.port)
        await web.TCPSite(self._runner, *address).start()
        self.url = f"http://{LOOPBACK}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        self._watch.close()

    @contextlib.asynccontextmanager
    async def serve(self, episode: AgentEpisode) -> AsyncIterator[str]:
        """Accept the requests of an episode; yield its key."""
        key = secrets.token_urlsafe(32)
        self._episodes[key] = episode
        try:
            yield key
        finally:
            del self._episodes[key]
            await episode.close()

    def _episode(self, request: web.Request) -> AgentEpisode:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        episode = self._episodes.get(key) if scheme.lower() == "bearer" else None
        if episode is None:
            message = "This key belongs to no running episode. Send OPENAI_API_KEY of the program as the bearer token."
            raise ApiError(401, message, code="invalid_api_key")
        return episode

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        episode = self._episode(request)
        try:
            wanted, reply = await episode.complete(await _body(request))
        except (ApiError, ValidationError):
            episode.count_rejected()
            raise
        if not wanted.stream:
            return web.Response(body=await _encode(reply), content_type="application/json")
        usage = bool((wanted.stream_options or {}).get("include_usage"))
        events = [b"data: " + await _encode(event) + b"\n\n" for event in _events(reply, usage=usage)]
        return web.Response(body=b"".join([*events, b"data: [DONE]\n\n"]), content_type="text/event-stream")

    async def _reward(self, request: web.Request) -> web.Response:
        episode = self._episode(request)
        try:
            episode.post_reward(await _body(request))
        except (ApiError, ValidationError):
            episode.count_rejected()
            raise
        return web.json_response({"reward": episode.reward})

    async def _models(self, request: web.Request) -> web.Response:
        self._episode(request)
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "rstar2"}]})


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return each error in OpenAI's format."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body(), status=error.status)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        body = ApiError(400, f"{field or 'the body'}: {first['msg']}", param=field or None).body()
        return web.json_response(body, status=400)
    except web.HTTPException as error:
        return web.json_response(ApiError(error.status, error.reason).body(), status=error.status)


async def _body(request: web.Request) -> Any:
    """Return the JSON body. Raises ApiError for one that is not JSON or too large."""
    try:
        return await load_json(await request.read(), max_fields=MAX_FIELDS)
    except JsonTooLarge as error:
        raise ApiError(413, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}"[:300]) from error
    except web.HTTPRequestEntityTooLarge as error:
        raise ApiError(413, f"the request is larger than {MAX_BODY_BYTES >> 20} MiB: shorten the messages") from error


async def _encode(reply: dict[str, Any]) -> bytes | bytearray:
    """Return the JSON of a reply, whose turn and prompt may be long."""
    turn = sum(len(choice.get("token_ids", ())) for choice in reply["choices"])
    return await dump_json(reply, characters=8 * len(reply.get("prompt_token_ids", ())) + 100 * turn)


def _events(reply: dict[str, Any], *, usage: bool) -> list[dict[str, Any]]:
    """Return a response as server-sent events. The turn is one event: it is sent when it is complete."""
    (choice,) = reply["choices"]
    head = {key: reply[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(delta["tool_calls"])]
    fields = {"index": 0, "logprobs": choice["logprobs"]}
    chunks = [
        {"choices": [{**fields, "delta": delta, "finish_reason": None, "token_ids": choice["token_ids"]}]}
        | {"prompt_token_ids": reply["prompt_token_ids"]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]},
    ]
    if usage:
        chunks.append({"choices": [], "usage": reply["usage"]})
    return [head | chunk for chunk in chunks]
