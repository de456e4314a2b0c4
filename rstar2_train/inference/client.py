"""HTTP client of one vLLM engine: token ids in; sampled ids, their log-probabilities and the weight version out.

The pool (`pool.py`) selects the engine. Sampling uses the project's own route in the engine (`generate_route.py`) with
binary bodies (`turn_wire.py`) and lean connections (`utils/http_connections.py`), all other calls use vLLM's routes. A
cancelled request closes its connection, and the engine aborts it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.engine_http import SHORT_SECONDS, EngineHttp
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.engine_protocols import EngineLimits
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.inference.turn_wire import (
    ADAPTER,
    BASE,
    FETCH,
    GENERATE,
    HOLD,
    RELEASE,
    SCORE,
    SERVE,
    PartReader,
    encode_request,
)
from rstar2_train.storage.manifest import IndexEntry
from rstar2_train.utils.http_connections import OK, Route
from rstar2_train.weights.adapter_check import AdapterOrder
from rstar2_train.weights.experimental.transfer import Offer, update_info
from rstar2_train.weights.version_store import VersionManifest

_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 0.01, 1.0
LOADING = "loading"
"""Weight version of an engine while it loads weights, and after a failed load."""


class EngineClient(EngineHttp):
    """The client of one engine of a job. All engines share one session."""

    def __init__(
        self,
        url: str,
        *,
        token: str,
        session: EngineSession,
        part_tokens: int | None = None,
        has_adapters: bool = False,
    ) -> None:
        """`part_tokens`: tokens of each streamed part of a turn; default: the engine's.

        `has_adapters`: whether the job trains adapters, so that the engine may serve one.
        """
        super().__init__(url, token=token, session=session)
        self._part_tokens = part_tokens
        self._has_adapters = has_adapters
        self._token = token
        self._sampled, self._sampled_at = 0, 0.0
        """Tokens that the engine had sampled in all, and the time at which they last changed."""
        self._base_scores: tuple[list[list[int]], list[list[float]]] | None = None
        """Rows, and the log-probabilities of their tokens under the whole weights that were loaded last."""

    @cached_property
    def _generate_route(self) -> Route:
        return Route.from_url(self.url + GENERATE, token=self._token)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop_ids: Sequence[int] = (),
        turn: SampledTurn | None = None,
    ) -> SampledTurn:
        """Sample a turn of at most `max_tokens` after `prompt_ids`, up to one of `stop_ids`.

        The limit of time counts from the last token that the engine sampled for any request, as `load` last saw.
        `turn`: receives each part as it arrives. If it has tokens of a lost engine, only the rest is sampled.
        Raises EngineUnavailable when the engine cannot serve it now, EngineRejected when the request is invalid.
        """
        turn = turn or SampledTurn()
        if turn.finish_reason is not None:  # cancelled after its last part
            return turn.whole()
        turn.resume()
        parameters: dict[str, Any] = {
            "max_tokens": max_tokens - len(turn.token_ids),
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "stop_token_ids": list(stop_ids),
            **({} if self._part_tokens is None else {"part_tokens": self._part_tokens}),
            **({} if turn.next_route is None else {"routes_from": turn.next_route}),
        }
        reader = PartReader()

        def add(data: bytes) -> None:
            for part in reader.feed(data):
                turn.add(part, url=self.url)

        body, seconds = encode_request(parameters, prompt_ids, turn.token_ids), 60 + max_tokens / 5
        try:
            reply = await self.session.turns.send(
                self._generate_route, body, add, seconds=seconds, progress=lambda: self._sampled_at
            )
        except TimeoutError as error:
            message = f"{self.url}{GENERATE} did not respond, and sampled no token, within {seconds:g} s"
            raise EngineUnavailable(message) from error
        except OSError as error:
            if turn.finish_reason is None:  # else the turn is complete, only the end of the reply is missing
                raise EngineUnavailable(f"{self.url}{GENERATE}: {error or type(error).__name__}") from error
        else:
            if reply.status != OK:
                raise self.failure(GENERATE, reply.status, reply.text)
        if turn.finish_reason is None:
            raise EngineUnavailable(f"{self.url} ended its reply in the middle of a turn")
        turn.check_routes(len(prompt_ids), url=self.url)
        return turn.whole()

    async def load(self) -> EngineLoad | None:
        """Return the engine's live figures; None if it does not report them. A busy engine is slow, not lost."""
        load = await super().load()
        if load is not None and load.tokens != self._sampled:
            self._sampled, self._sampled_at = load.tokens, time.monotonic()
        return load

    async def limits(self) -> EngineLimits:
        """Return the engine's capacity, from `/v1/models` and `/metrics`."""
        models = await self.call("GET", "/v1/models", seconds=SHORT_SECONDS)
        return EngineLimits(int(models["data"][0]["max_model_len"]), *await self.kv_cache_size())

    async def weight_version(self) -> str:
        """Return the weight version that the engine reports; `default` before the first load."""
        reply = await self.call("GET", "/weight_info", seconds=SHORT_SECONDS)
        return str(reply["weight_version"])

    async def load_weights(self, folder: Path, version: str, *, seconds: float, keep_requests: bool = False) -> None:
        """Load the weights in `folder` (an absolute path that the engine can read) as `version`.

        Aborts the requests in flight, clears the prefix cache, and verifies the version at the end. With
        `keep_requests` the requests wait instead until `release`, and their next tokens come from the new weights.
        During the load, and after a failure in the middle of it, the engine's version is `loading`. Raises
        EngineRejected when the folder holds another model (the old weights stay), EngineUnavailable when the engine
        fails or exceeds `seconds`.
        """
        async with self._deadline(version, seconds):
            await self._replace_base(
                lambda: self._call_workers("rstar2_load", str(folder), seconds=seconds),
                version=version,
                seconds=seconds,
                keep_requests=keep_requests,
            )

    async def load_chain(
        self,
        chain: Sequence[Path],
        version: str,
        *,
        version_id: str,
        seconds: float,
        fresh: bool = False,
        keep_requests: bool = False,
    ) -> None:
        """Load the last version of a chain of snapshot and deltas (absolute paths), as `load_weights` loads a folder.

        The engine reads and verifies the files while it generates; only then its requests stop. `version_id`: id of
        that version in its manifest; `fresh`: read the whole chain, also if the engine has a part of it.
        """
        async with self._deadline(version, seconds):
            self._check_results(await self._fetch(chain, fresh=fresh, seconds=seconds), version)
            await self._replace_base(
                lambda: self._call_workers("rstar2_swap", version_id, seconds=seconds),
                version=version,
                seconds=seconds,
                keep_requests=keep_requests,
            )

    async def _fetch(self, chain: Sequence[Path], *, fresh: bool, seconds: float) -> list[dict[str, Any]]:
        """Let the workers read a chain; return each worker's result."""
        arguments = (secrets.token_hex(8), [str(folder) for folder in chain], fresh)
        wait = _FIRST_POLL_SECONDS
        while True:
            results = await self._call_workers("rstar2_fetch", *arguments, seconds=seconds)
            if all(result["ok"] is not None for result in results):
                return results
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LAST_POLL_SECONDS)

    async def workers(self) -> int:
        """Return the number of processes that hold a part of the model."""
        return int((await self.call("GET", "/get_world_size", seconds=SHORT_SECONDS))["world_size"])

    async def receive_weights(
        self,
        offer: Offer,
        manifest: VersionManifest,
        *,
        seconds: float,
        keep_requests: bool = False,
    ) -> None:
        """Receive a version over the group of `offer`, then load it, by vLLM's weight-transfer API.

        The requests in flight are aborted, or wait until `release`, only when all files are verified. Raises
        EngineUnavailable when the transfer fails (the old weights stay), or when a phase exceeds its deadline.
        """
        version = manifest.version
        phase = offer.seconds + 5  # the workers report their own timeout first
        async with self._deadline(version, seconds):
            await self.post("/init_weight_transfer_engine", offer.init_info(), seconds=phase)
            await self.call("POST", "/start_weight_update", seconds=phase)
            await self.post("/update_weights", update_info(manifest), seconds=phase)
            await self._replace_base(
                lambda: self._finish_transfer(seconds), version=version, seconds=seconds, keep_requests=keep_requests
            )

    async def base_name(self) -> str | None:
        """Return the name of the whole weights that the engine has; None: they have none."""
        name: str | None = (await self.post(BASE, {}, seconds=SHORT_SECONDS))["name"]
        return name

    async def name_base(self, name: str) -> None:
        """Name the whole weights that the engine has just loaded. It loses the name with the weights."""
        await self.post(BASE, {"name": name}, seconds=SHORT_SECONDS)

    async def load_adapter(self, order: AdapterOrder, *, seconds: float, keep_requests: bool = False) -> None:
        """Load an adapter on the engine's weights and serve it, as `load_weights` does with a folder.

        The engine reads, verifies and adds it while it generates; only then its requests stop.
        """
        async with self._deadline(order.version, seconds):
            self._check_results([await self.post(ADAPTER, order.to_json(), seconds=seconds)], order.version)
            await self._replace_weights(
                lambda: self._serve(order.version), version=order.version, seconds=seconds, keep_requests=keep_requests
            )

    async def copy_folders(self, entries: Sequence[IndexEntry], *, seconds: float) -> list[Path]:
        """Let the engine copy published folders from the bucket; return their paths there.

        The engine generates meanwhile. Raises EngineRejected for a publication that is damaged or missing,
        EngineUnavailable if the bucket does not answer the engine.
        """
        body = {"folders": [entry.model_dump() for entry in entries]}
        reply = await self.post(FETCH, body, seconds=seconds)
        if not reply["ok"]:
            kind = EngineUnavailable if reply["retry"] else EngineRejected
            raise kind(f"{self.url} cannot read the weights from the bucket: {reply['why']}")
        return [Path(folder) for folder in reply["folders"]]

    async def score(self, rows: Sequence[Sequence[int]], *, base: bool = False) -> list[list[float]]:
        """Return the log-probability of each token of `rows` after its first. Raises as `generate` does.

        `base`: without the adapter that the engine serves. They do not change until other whole weights are loaded, so
        the engine computes them once.
        """
        lists = [list(row) for row in rows]
        if base and self._base_scores is not None and self._base_scores[0] == lists:
            return self._base_scores[1]
        reply = await self.post(SCORE, {"rows": lists, "base": base}, seconds=60)
        scores: list[list[float]] = reply["logprobs"]
        if base:
            self._base_scores = lists, scores
        return scores

    async def release(self) -> None:
        """Let the requests continue that a load with `keep_requests` holds, after the probe of the new weights."""
        await self.post(RELEASE, {}, seconds=SHORT_SECONDS)

    async def sleep(self, *, seconds: float) -> None:
        """Let the engine move its weights to host memory and drop its KV cache; it aborts its requests.

        Frees the device for the trainer. An engine that sleeps already stays asleep.
        """
        await self.call("POST", "/sleep?level=1&mode=abort", seconds=seconds)

    async def wake_up(self, *, seconds: float) -> None:
        """Let the engine take its memory again, with the weights that it had. No effect on an engine that is awake."""
        await self.call("POST", "/wake_up", seconds=seconds)

    async def mark_loading(self) -> None:
        """Set the engine's version to `loading`, because its weights are wrong."""
        await self.post("/update_weight_version", {"new_version": LOADING}, seconds=SHORT_SECONDS)

    @asynccontextmanager
    async def _deadline(self, version: str, seconds: float) -> AsyncIterator[None]:
        """Limit a load to `seconds`. Raises EngineUnavailable after them."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise EngineUnavailable(f"{self.url} did not load version {version!r} within {seconds:g} s") from error

    async def _replace_base(
        self,
        replace: Callable[[], Awaitable[list[dict[str, Any]]]],
        *,
        version: str,
        seconds: float,
        keep_requests: bool = False,
    ) -> None:
        """Replace the engine's whole weights, as `_replace_weights`; no adapter is served afterwards."""
        self._base_scores = None
        if not self._has_adapters:
            await self._replace_weights(replace, version=version, seconds=seconds, keep_requests=keep_requests)
            return

        async def replace_all() -> list[dict[str, Any]]:
            await self.post(BASE, {"name": None}, seconds=SHORT_SECONDS)
            results = await replace()
            # An adapter that the engine serves stays if no worker has taken the weights.
            return [*results, *(await self._serve(None) if any(result["ok"] for result in results) else [])]

        await self._replace_weights(replace_all, version=version, seconds=seconds, keep_requests=keep_requests)

    async def _serve(self, version: str | None) -> list[dict[str, Any]]:
        """Let the engine serve the adapter that it has loaded last, or with None its own weights."""
        return [await self.post(SERVE, {"version": version}, seconds=SHORT_SECONDS)]

    async def _replace_weights(
        self,
        replace: Callable[[], Awaitable[list[dict[str, Any]]]],
        *,
        version: str,
        seconds: float,
        keep_requests: bool = False,
    ) -> None:
        """Pause the engine, replace its weights, resume, and verify the version.

        `replace`: returns each worker's result. `keep_requests`: let the requests in flight wait, not fail. They wait
        in the engine's route, not in its scheduler, so that the engine can score the probe before they continue.
        """
        if keep_requests:
            await self.post(HOLD, {}, seconds=SHORT_SECONDS)
        await self.call("POST", "/pause?mode=abort", seconds=seconds)
        before = await self.weight_version()
        await self.mark_loading()
        results = await replace()
        refused = sum(not result["ok"] for result in results)
        if not refused:
            reset = await self.call("POST", "/reset_prefix_cache?reset_running_requests=true", seconds=SHORT_SECONDS)
            if not reset["success"]:
                raise EngineUnavailable(f"{self.url} could not clear its prefix cache")
            await self.post("/update_weight_version", {"new_version": version}, seconds=SHORT_SECONDS)
        elif refused == len(results):
            # Some workers may have loaded the new weights: only if all refused, the old version is still correct.
            await self.post("/update_weight_version", {"new_version": before}, seconds=SHORT_SECONDS)
        if keep_requests:  # a request that reached the scheduler after the first abort must not start
            await self.call("POST", "/pause?mode=abort", seconds=SHORT_SECONDS)
        await self.call("POST", "/resume", seconds=SHORT_SECONDS)
        confirmed = await self.weight_version()
        self._check_results(results, version)
        if confirmed != version:
            raise EngineUnavailable(f"{self.url} reports weight version {confirmed!r} instead of {version!r}")

    async def _finish_transfer(self, seconds: float) -> list[dict[str, Any]]:
        """Let the workers load the received tensors; vLLM raises if one of them fails."""
        await self.post("/finish_weight_update", {"weight_version": LOADING}, seconds=seconds)
        return [{"ok": True}]

    async def _call_workers(self, method: str, *args: object, seconds: float) -> list[dict[str, Any]]:
        """Call a method of the worker extension in every worker; return their results."""
        body = {"method": method, "args": list(args)}
        results: list[dict[str, Any]] = (await self.post("/collective_rpc", body, seconds=seconds))["results"]
        return results

    def _check_results(self, results: list[dict[str, Any]], version: str) -> None:
        """Raise EngineRejected if a worker refused the weights."""
        for result in results:
            if not result["ok"]:
                raise EngineRejected(f"{self.url} rejects the weights of version {version!r}: {result['why']}")
