"""The engines of a job: the pool keeps each engine at the current weight version, and out of use until it has it.

The training loop pushes one version per step; the trajectories get slots in engines. Each engine has its own task with
its own timeouts, so that an engine that hangs or crashes blocks no other engine: the pool takes it out of use and its
trajectories move. A restarted engine has other weights; it gets the current ones before it serves again. The files of a
pushed version (`weight_update.py`) must stay on disk, visible to the engines, until the next push.

Engines have fixed addresses, or `find` discovers them every few seconds: they may appear and disappear while
trajectories run. An engine that is no longer discovered drains, because its pod may be terminating: it gets no new
trajectories, and its own continue in other engines. If no other engine serves, it stays in use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rstar2_train.api.contracts import ENGINE_START_SECONDS
from rstar2_train.api.roles import AdmissionSpec
from rstar2_train.inference.admission import AdmissionQueue
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.engine_protocols import Connect, EngineLimits, PooledClient, weight_receiver
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.engine_statistics import EngineStatistics
from rstar2_train.inference.weight_update import WeightUpdate, complete
from rstar2_train.weights.probe import Scores

log = logging.getLogger(__name__)

Find = Callable[[], Awaitable[frozenset[str] | None]]
"""Returns the base URLs of the existing engines; None if the discovery failed."""


@dataclass(frozen=True, slots=True)
class PoolTimes:
    """Timeouts and intervals, in seconds."""

    patience: float = ENGINE_START_SECONDS
    """Longest time without a serving engine: one that was killed may start again."""
    discovery_patience: float = 1800.0
    """The same for discovered engines: a pod may also pull its image."""
    load: float = 600.0
    """Longest time in which one engine loads weights."""
    straggler: float = 30.0
    """Longest wait for further engines after the first one has confirmed a version; they can join later."""
    check_interval: float = 5.0
    """Interval between two checks of a serving engine."""
    retry_interval: float = 1.0
    """Interval between two tries with an engine that does not serve."""
    discovery_interval: float = 3.0
    """Interval between two discoveries."""


@dataclass(frozen=True, slots=True)
class _Target:
    number: int
    update: WeightUpdate
    keep_requests: bool


@dataclass(slots=True)
class _PooledEngine:
    client: PooledClient
    confirmed: int = 0
    """Number of the target that it has confirmed; 0: none, or the engine is lost."""
    loaded: int = 0
    """Number of the target that it loaded last."""
    tried: int = 0
    """Number of the newest target that it tried to load, with or without success."""
    limits: EngineLimits | None = None
    last_error: str = "not tried yet"
    rejected: str = ""
    """Why it rejected the current target when it loaded it; empty if it did not."""
    scores: tuple[int, Scores] | None = None
    """Number of the last version that the probe accepted, and the engine's log-probabilities."""
    refused: bool = False
    """Whether the probe refused the weights of the last load."""
    discovered: bool = True
    """Whether the last discovery returned it."""
    draining: bool = False
    """Whether it has no trajectories because it is no longer discovered."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class EnginePool:
    """All engines of a job. Use as `async with`; bound to the event loop in which it is entered."""

    def __init__(
        self,
        urls: Sequence[str] = (),
        *,
        token: str,
        find: Find | None = None,
        admission: AdmissionSpec | None = None,
        times: PoolTimes | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`token`: bearer token of the engines; `connect`: creates an engine's client, default EngineClient.

        Raises ValueError without addresses and without discovery.
        """
        if not urls and find is None:
            raise ValueError("no engine address: rollouts need at least one engine")
        settings = admission or AdmissionSpec()
        self.times = times or PoolTimes()
        self.admission = AdmissionQueue(policy=settings.policy, max_in_flight=settings.max_in_flight)
        self.statistics = EngineStatistics()
        self._urls = [url.rstrip("/") for url in dict.fromkeys(urls)]
        self._token = token
        self._find = find
        self._connect: Connect = connect or EngineClient
        self._engines: dict[str, _PooledEngine] = {}
        self._target: _Target | None = None
        self.push_numbers: dict[str, int] = {}
        """Number of the last push of each version, from 1."""
        self.before_push: list[Callable[[str, int], Awaitable[None]]] = []
        """Called with version and number before a push, which waits for them: rollout workers must know it first."""
        self._changed = asyncio.Event()
        self._down_since: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: EngineSession | None = None

    async def __aenter__(self) -> EnginePool:
        self._session = EngineSession()
        for url in self._urls:
            self._add_engine(url)
        self._start_task(self._watch_outage())
        if self._find is not None:
            self._start_task(self._discover(self._find))
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert self._session is not None
        await self._session.close()

    @property
    def version(self) -> str | None:
        """Weight version that an engine must have to serve; None before the first push."""
        return self._target.update.version if self._target else None

    @property
    def serving(self) -> list[str]:
        """Addresses of the healthy engines that have confirmed the current version."""
        return self.admission.engines

    @property
    def max_model_len(self) -> int | None:
        """Tokens of the longest sequence that every engine can take; None before the first engine has served."""
        return min((engine.limits.max_model_len for engine in self._engines.values() if engine.limits), default=None)

    @property
    def kv_tokens(self) -> list[int]:
        """Tokens of KV cache of each engine that has served."""
        return [engine.limits.kv_tokens for engine in self._engines.values() if engine.limits]

    def client(self, url: str) -> PooledClient:
        """Return the client of an engine. Raises EngineUnavailable if the engine has left the pool."""
        engine = self._engines.get(url)
        if engine is None:
            raise EngineUnavailable(f"{url} has left the pool")
        return engine.client

    def push_number(self, version: str) -> int | None:
        """Return the number of the last push of a version, from 1; None for a version that was never pushed."""
        return self.push_numbers.get(version)

    async def push(self, update: WeightUpdate, *, keep_requests: bool = False) -> list[str]:
        """Load a weight version into all engines.

        Returns the addresses of the engines that have confirmed it: at least one. The others join when they confirm it.
        Running trajectories are moved. With `keep_requests` they stay in their engine, wait for its load and continue
        with the new weights; only those of an engine that does not confirm the version in time are moved. Raises
        EngineRejected when an engine rejects the files and no other engine takes them, EngineUnavailable when no engine
        serves within the patience of `times`.
        """
        number = self._target.number + 1 if self._target else 1
        for announce in self.before_push:
            await announce(update.version, number)
        for url, engine in self._engines.items():
            engine.confirmed, engine.rejected = 0, ""
            if keep_requests:
                self.admission.hold_engine(url)
            else:
                self.admission.remove_engine(url)
        self._target = _Target(number, update, keep_requests)
        self.push_numbers[update.version] = number
        self._down_since = time.monotonic()
        for engine in self._engines.values():
            engine.wake.set()
        deadline = time.monotonic() + self._patience + self.times.load
        while time.monotonic() < deadline:
            self._changed.clear()
            engines = self._engines.values()
            if all(engine.tried == number for engine in engines):
                if self.serving:
                    break
                if refused := [engine.rejected for engine in engines if engine.rejected]:
                    raise EngineRejected(refused[0])
                if self._outage_seconds() > self._patience:
                    raise EngineUnavailable(self._outage_message())
            elif self.serving:
                deadline = min(deadline, time.monotonic() + self.times.straggler)
            await _wait(self._changed, seconds=min(1.0, self.times.retry_interval))
        if not self.serving:
            raise EngineUnavailable(self._outage_message())
        for url, engine in self._engines.items():
            if engine.confirmed != number:
                self.admission.remove_engine(url)
                log.warning("engine %s does not serve version %s yet: %s", url, update.version, engine.last_error)
        return self.serving

    def mark_failed(self, url: str, error: Exception) -> None:
        """Take an engine out of use after a failed request, until its task has checked it."""
        engine = self._engines.get(url)
        if engine is None or not engine.confirmed:
            return
        log.warning("engine %s is out of use: %s", url, error)
        engine.confirmed, engine.last_error = 0, str(error)
        self.admission.remove_engine(url)
        self._note_change()
        engine.wake.set()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_engine(self, url: str) -> None:
        """Add an engine and start its task."""
        assert self._session is not None
        engine = _PooledEngine(self._connect(url, token=self._token, session=self._session))
        self._engines[url] = engine
        self._start_task(self._maintain(engine))

    async def _discover(self, find: Find) -> None:
        """Periodically add new engines, and mark those that are no longer discovered."""
        while True:
            urls = await find()
            if urls is not None:
                for url in sorted(urls - self._engines.keys()):
                    log.info("engine %s: discovered", url)
                    self._add_engine(url)
                for url, engine in self._engines.items():
                    if engine.discovered != (url in urls):
                        engine.discovered = url in urls
                        engine.wake.set()
                for engine in self._engines.values():
                    self._update_draining(engine)
            await asyncio.sleep(self.times.discovery_interval)

    def _update_draining(self, engine: _PooledEngine) -> None:
        """Let an engine drain that is no longer discovered, while others serve."""
        serving = set(self.serving)
        others = any(other.discovered and url in serving for url, other in self._engines.items() if other is not engine)
        should_drain = not engine.discovered and others
        if should_drain == engine.draining or self._target is None or engine.confirmed != self._target.number:
            return
        engine.draining = should_drain
        log.info("engine %s: %s", engine.client.url, "draining" if should_drain else "in use again")
        if should_drain:
            self.admission.remove_engine(engine.client.url)
        else:
            self._let_serve(engine)

    def _let_serve(self, engine: _PooledEngine) -> None:
        assert engine.limits is not None
        self.admission.add_engine(engine.client.url, capacity=engine.limits.kv_tokens, block=engine.limits.block_tokens)
        self._note_change()

    async def _maintain(self, engine: _PooledEngine) -> None:
        """Load the target into one engine and check it periodically, until it leaves the pool."""
        url = engine.client.url
        while True:
            target = self._target
            serving = target is not None and engine.confirmed == target.number
            engine.wake.clear()
            try:
                if target is None:
                    pass
                elif serving:
                    version = await engine.client.weight_version()
                    if version != target.update.version and target is self._target:
                        raise EngineUnavailable(f"{url} has weight version {version!r}: the engine has restarted")
                    load = await engine.client.load()
                    if load is not None and engine.confirmed and engine.limits:
                        self.admission.observe(url, load)
                        self.statistics.add(url, load, kv_tokens=engine.limits.kv_tokens, now=time.monotonic())
                else:
                    self.statistics.remove(url)
                    if not await engine.client.healthy():  # ends a rejection: a restarted engine may take the version
                        raise EngineUnavailable(f"{url} does not respond")
                    if not engine.rejected or engine.tried != target.number:
                        await self._load_target(engine, target)
            except (EngineUnavailable, EngineRejected) as error:
                if serving and target is self._target:
                    self.mark_failed(url, error)
                elif not serving:
                    self.admission.remove_engine(url)  # it may be held
                engine.last_error = str(error)
                is_of_load = not serving and target is self._target  # else of a check, or of a version before
                engine.rejected = str(error) if isinstance(error, EngineRejected) and is_of_load else ""
            if target is not None and target is self._target:
                engine.tried = target.number
            self._changed.set()
            if not engine.discovered and not engine.confirmed:
                log.info("engine %s: left the pool", url)
                self._engines.pop(url)
                self.statistics.drop(url)
                return
            await _wait(
                engine.wake, seconds=self.times.check_interval if engine.confirmed else self.times.retry_interval
            )

    async def _load_target(self, engine: _PooledEngine, target: _Target) -> None:
        """Load the target into an engine unless the engine has it, and let it serve."""
        limits = await engine.client.limits()
        # Loaded once per push, even if the versions are equal: a resumed run can give a new model the same name.
        update = target.update
        if engine.loaded != target.number or await engine.client.weight_version() != update.version:
            await update.load(
                engine.client, seconds=self.times.load, fresh=engine.refused, keep_requests=target.keep_requests
            )
            await self._check_probe(engine, target)
            await engine.client.release()
            engine.loaded = target.number
        if target is not self._target:
            return
        engine.limits, engine.confirmed, engine.last_error, engine.draining = limits, target.number, "", False
        self._let_serve(engine)

    async def _check_probe(self, engine: _PooledEngine, target: _Target) -> None:
        """Score the probe's tokens in an engine with new weights. Raises EngineUnavailable if the probe refuses it.

        The engine then loads the version again, from the beginning.
        """
        probe = target.update.probe
        if probe is None:
            return
        receiver = weight_receiver(engine.client)
        scores = await receiver.score(probe.rows)
        base = await receiver.score(probe.rows, base=True) if probe.has_adapter else None
        # A restarted engine loads the version again that it had: its scores are the same.
        before = engine.scores[1] if engine.scores and engine.scores[0] != target.number else None
        refusal = (await complete(probe)).refusal(scores, before=before, base=base)
        engine.refused = bool(refusal)
        if refusal:
            await receiver.mark_loading()
            message = f"{engine.client.url} does not pass the probe of version {target.update.version!r}: {refusal}"
            log.warning("%s", message)
            raise EngineUnavailable(message)
        engine.scores = (target.number, scores)

    async def _watch_outage(self) -> None:
        """Fail the waiting trajectories when no engine has served within the patience."""
        while True:
            await asyncio.sleep(min(1.0, self.times.patience / 4))
            if self._target is not None and self._outage_seconds() > self._patience:
                self.admission.fail_waiting(EngineUnavailable(self._outage_message()))

    def _note_change(self) -> None:
        if self.serving:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = time.monotonic()
        self._changed.set()

    def _outage_seconds(self) -> float:
        """Return the seconds since an engine last served; 0 while one serves."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    @property
    def _patience(self) -> float:
        return self.times.patience if self._find is None else self.times.discovery_patience

    def _outage_message(self) -> str:
        if not self._engines:
            return f"no engine was discovered for {self._outage_seconds():.0f} s"
        reasons = "; ".join(f"{engine.client.url}: {engine.last_error}" for engine in self._engines.values())
        return f"no engine has served for {self._outage_seconds():.0f} s ({reasons})"


async def _wait(event: asyncio.Event, *, seconds: float) -> None:
    """Wait for an event, at most `seconds`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
