"""The engines of a job: keeps every one of them at the weights that are wanted, and out of use until it is.

Between the training loop, which pushes a version a step, and the trajectories, which take a seat in an engine. Each
engine has its own keeper task with its own timeouts, so that one that hangs or dies holds up nobody: it leaves, its
trajectories move, and when it is back (a restarted engine has other weights) it is brought up to date before it
serves again. Weights travel by folder: what is pushed must stay on disk, visible to the engines, until the next push.

Engines are given by address, or found: `find` is asked every few seconds, and members come and go while trajectories
run. One that is no longer found stays while it serves: a pod that is ending, or too busy for its probe, is still good.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from rstar2_train.api.roles import AdmissionSpec as AdmissionSettings
from rstar2_train.inference.client import EngineClient, EngineLimits, EngineRejected, EngineUnavailable
from rstar2_train.inference.scheduler import AdmissionQueue

log = logging.getLogger(__name__)

Find = Callable[[], Awaitable[frozenset[str] | None]]
"""Base URLs of the engines that there are now; None: cannot be told now."""
Connect = Callable[..., EngineClient]
"""Makes the client of an engine: `connect(url, token=..., session=...)`."""


@dataclass(frozen=True, slots=True)
class PoolTimes:
    """Seconds."""

    patience: float = 180.0
    """How long to go on without any engine that serves, before giving up: on this machine one is soon restarted."""
    arrival: float = 1800.0
    """The same, where engines are found: a pod's image may be on its way, and a large model takes long to load anew."""
    load: float = 600.0
    """Most that one engine may take to exchange its weights."""
    straggler: float = 30.0
    """How long to wait for the other engines once one has confirmed; they may still join later."""
    check: float = 5.0
    """Between two looks at an engine that serves."""
    retry: float = 1.0
    """Between two tries with one that does not."""
    look: float = 3.0
    """Between two looks for engines that have come or gone."""


@dataclass(frozen=True, slots=True)
class _TargetVersion:
    number: int
    folder: Path
    version: str

    @classmethod
    def make(cls, number: int, folder: Path, version: str) -> _TargetVersion:
        """The engines run elsewhere: they need the whole path."""
        return cls(number, folder.absolute(), version)


@dataclass(slots=True)
class _PooledEngine:
    client: EngineClient
    confirmed: int = 0
    """Number of the target that it has confirmed; 0: none, or it is lost."""
    loaded: int = 0
    """Number of the target that was last put into it."""
    tried: int = 0
    """Number of the newest target for which it was tried once, with or without success."""
    limits: EngineLimits | None = None
    trouble: str = "not tried yet"
    rejected: str = ""
    present: bool = True
    """Whether it was found the last time somebody looked."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class EnginePool:
    """All engines of a job. Use as `async with`; bound to the event loop that it is entered in."""

    def __init__(
        self,
        urls: Sequence[str] = (),
        *,
        token: str,
        find: Find | None = None,
        admission: AdmissionSettings | None = None,
        times: PoolTimes | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`token`: of the engines' administration routes. `connect`: makes an engine's client; default:
        of an engine of ours. Raises ValueError without engines, given or to be found.
        """
        if not urls and find is None:
            raise ValueError("no engine addresses were given: rollouts need at least one engine")
        settings = admission or AdmissionSettings()
        self.times = times or PoolTimes()
        self.admission = AdmissionQueue(policy=settings.policy, max_in_flight=settings.max_in_flight)
        self._urls = [url.rstrip("/") for url in dict.fromkeys(urls)]
        self._token = token
        self._find = find
        self._connect = connect or EngineClient
        self._engines: dict[str, _PooledEngine] = {}
        self._target: _TargetVersion | None = None
        self._changed = asyncio.Event()
        self._down_since: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> EnginePool:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout())
        for url in self._urls:
            self._add(url)
        self._run(self._watch_outage())
        if self._find is not None:
            self._run(self._discover(self._find))
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
        """The version that engines must have to serve; None before the first push."""
        return self._target.version if self._target else None

    @property
    def serving(self) -> list[str]:
        """Addresses of the engines that have confirmed the wanted version and are well."""
        return self.admission.engines

    @property
    def max_model_len(self) -> int | None:
        """Tokens of the longest sequence that every engine can take; None before an engine has served."""
        return min((engine.limits.max_model_len for engine in self._engines.values() if engine.limits), default=None)

    def client(self, url: str) -> EngineClient:
        """The client of one engine. Raises EngineUnavailable when it has just gone."""
        engine = self._engines.get(url)
        if engine is None:
            raise EngineUnavailable(f"{url} is gone")
        return engine.client

    async def update_weights(self, folder: Path, version: str) -> list[str]:
        """Make all engines serve the weights in `folder` (a Hugging Face model) as `version`; the old ones are out.

        Returns the addresses of those that have confirmed it: at least one. The others join when they confirm it.
        Trajectories still running are moved. Raises EngineRejected when an engine refuses the folder and none takes
        it, EngineUnavailable when no engine is there for `times.patience` seconds (`arrival` where they are found).
        """
        number = self._target.number + 1 if self._target else 1
        for url, engine in self._engines.items():
            engine.confirmed, engine.rejected = 0, ""
            self.admission.remove_engine(url)
        self._target = _TargetVersion.make(number, folder, version)
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
                refused = [engine.rejected for engine in engines if engine.rejected]
                if refused:
                    raise EngineRejected(refused[0])
                if self._outage() > self._patience:
                    raise EngineUnavailable(self._why_none())
            elif self.serving:
                deadline = min(deadline, time.monotonic() + self.times.straggler)
            await _wait(self._changed, seconds=min(1.0, self.times.retry))
        if not self.serving:
            raise EngineUnavailable(self._why_none())
        for engine in self._engines.values():
            if engine.confirmed != number:
                log.warning("engine %s does not serve version %s yet: %s", engine.client.url, version, engine.trouble)
        return self.serving

    def trouble(self, url: str, why: Exception) -> None:
        """A request failed on an engine: it takes no more until its keeper has seen that it is well."""
        engine = self._engines.get(url)
        if engine is None or not engine.confirmed:
            return
        log.warning("engine %s is out of use: %s", url, why)
        engine.confirmed, engine.trouble = 0, str(why)
        self.admission.remove_engine(url)
        self._note_change()
        engine.wake.set()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add(self, url: str) -> None:
        """Take an engine in; its keeper brings it up to date."""
        assert self._session is not None
        engine = _PooledEngine(self._connect(url, token=self._token, session=self._session))
        self._engines[url] = engine
        self._run(self._keep(engine))

    async def _discover(self, find: Find) -> None:
        """Take in the engines that have come, and mark those that have gone, for ever."""
        while True:
            found = await find()
            if found is not None:
                for url in sorted(found - self._engines.keys()):
                    log.info("engine %s is new", url)
                    self._add(url)
                for url, engine in self._engines.items():
                    if engine.present != (url in found):
                        engine.present = url in found
                        engine.wake.set()
            await asyncio.sleep(self.times.look)

    async def _keep(self, engine: _PooledEngine) -> None:
        """Bring one engine to the target and watch it, until it is gone."""
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
                    if version != target.version and target is self._target:
                        raise EngineUnavailable(f"it has the weights {version!r}: it was restarted")
                elif not (engine.rejected and engine.tried == target.number):
                    await self._bring_up(engine, target)
            except (EngineUnavailable, EngineRejected) as error:
                if serving and target is self._target:
                    self.trouble(url, error)
                engine.trouble = str(error)
                engine.rejected = str(error) if isinstance(error, EngineRejected) else ""
            if target is not None and target is self._target:
                engine.tried = target.number
            self._changed.set()
            if not engine.present and not engine.confirmed:
                log.info("engine %s is gone", url)
                self._engines.pop(url)
                return
            await _wait(engine.wake, seconds=self.times.check if engine.confirmed else self.times.retry)

    async def _bring_up(self, engine: _PooledEngine, target: _TargetVersion) -> None:
        """Give an engine the target's weights, unless it has them already, and let it serve."""
        if not await engine.client.healthy():
            raise EngineUnavailable(f"{engine.client.url} does not answer")
        limits = await engine.client.limits()
        # Loaded once for each push, also when the names are equal: a resumed run gives a new model an old name.
        if engine.loaded != target.number or await engine.client.weight_version() != target.version:
            await engine.client.load_weights(target.folder, target.version, seconds=self.times.load)
            engine.loaded = target.number
        if target is not self._target:
            return
        engine.limits, engine.confirmed, engine.trouble = limits, target.number, ""
        self.admission.add_engine(engine.client.url, capacity=limits.kv_tokens, block=limits.block_tokens)
        self._note_change()

    async def _watch_outage(self) -> None:
        """Fail the waiting trajectories when no engine has served for too long."""
        while True:
            await asyncio.sleep(min(1.0, self.times.patience / 4))
            if self._target is not None and self._outage() > self._patience:
                self.admission.give_up(EngineUnavailable(self._why_none()))

    def _note_change(self) -> None:
        if self.serving:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = time.monotonic()
        self._changed.set()

    def _outage(self) -> float:
        """Seconds without an engine that serves."""
        return 0.0 if self._down_since is None else time.monotonic() - self._down_since

    @property
    def _patience(self) -> float:
        return self.times.patience if self._find is None else self.times.arrival

    def _why_none(self) -> str:
        if not self._engines:
            return f"no engine was found for {self._outage():.0f} s"
        reasons = "; ".join(f"{engine.client.url}: {engine.trouble}" for engine in self._engines.values())
        return f"no engine has served for {self._outage():.0f} s ({reasons})"


async def _wait(event: asyncio.Event, *, seconds: float) -> None:
    """Wait for an event, but not for longer."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
