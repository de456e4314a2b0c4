"""kill -9 in each phase of an adapter's update, with real files: of the engine, of the orchestrator, and of a rank.

The phases are enumerated: every request of an update to an engine, and every file operation of a publication. The
engine is a state in memory behind the real client and pool; a real one is killed in tests/integration/rollout.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.inference.client import LOADING, EngineClient
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.engine_load import EngineLoad
from rstar2_train.inference.engine_protocols import EngineLimits
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.turn_wire import ADAPTER, BASE, SCORE, SERVE
from rstar2_train.inference.weight_update import AdapterUpdate, FolderUpdate, PendingProbe, complete
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import TrainConfig
from rstar2_train.weights import version_store
from rstar2_train.weights.adapter_check import AdapterOrder, verify_adapter
from rstar2_train.weights.adapter_folder import AdapterIdentity, read_tensors, tensor_name, write_adapter
from rstar2_train.weights.probe import Probe
from tests.support.adapters import publish

TIMES = PoolTimes(patience=30, load=30, straggler=30, check_interval=0.01, retry_interval=0.01)
LAYER = "model.layers.0.mlp.up_proj"
ROWS = [[1, 2, 3]]


class Killed(BaseException):
    """The orchestrator died."""


class MemoryEngine:
    """The state of an engine that changes as `inference/engine_adapters.py` does; it dies at one of its requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.dies_at = -1
        self.caller_dies_at = -1
        self.restart()

    def restart(self) -> None:
        """Start again with the boot model."""
        self.weights, self.version = "boot", "default"
        self.base: str | None = None
        self.loaded: AdapterOrder | None = None
        self.served: AdapterOrder | None = None
        self.running = True

    def scores(self, *, base: bool) -> list[list[float]]:
        """Return values that depend on the weights, and on the tensors of the adapter."""
        value = float(sum(self.weights.encode()))
        if self.served is not None and not base:
            value += float(read_tensors(Path(self.served.folder))[tensor_name(LAYER, "lora_B")].sum())
        return [[-value] * (len(row) - 1) for row in ROWS]

    def handle(self, path: str, body: dict[str, Any]) -> Any:
        """Handle a request: it is lost with the engine, or with its caller after the reply."""
        number = len(self.requests)
        self.requests.append(path)
        if number == self.dies_at:
            self.restart()
            raise EngineUnavailable("the engine died")
        reply = self._handle(path, body)
        if self.running and self.version.startswith("rl-step"):  # requests that sample now get this label
            order = self.served
            assert self.weights == "/base"
            assert (order.version if order else "rl-step-000000") == self.version, self.requests
        if number == self.caller_dies_at:
            raise Killed
        return reply

    def _handle(self, path: str, body: dict[str, Any]) -> Any:
        path = path.partition("?")[0]
        if path == "/weight_info":
            return {"weight_version": self.version}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        elif path in ("/pause", "/resume"):
            self.running = path == "/resume"
        elif path == "/collective_rpc":
            assert body["method"] == "rstar2_load" and not self.running and self.version == LOADING
            self.weights = body["args"][0]
            return {"results": [{"ok": True}]}
        elif path == BASE:
            self.base = body.get("name", self.base)
            return {"name": self.base}
        elif path == ADAPTER:
            order = AdapterOrder.from_json(body)
            verify_adapter(order)
            self.loaded = order
        elif path == SERVE:
            assert not self.running and self.version == LOADING
            if body["version"] is None:
                self.served = None
            elif self.loaded is None or self.loaded.version != body["version"]:
                return {"ok": False, "why": "the engine has no adapter of this version"}
            else:
                self.served = self.loaded
        elif path == SCORE:
            return {"logprobs": self.scores(base=body["base"])}
        return {"ok": True, "success": True}


class MemoryClient(EngineClient):
    """The client of a MemoryEngine."""

    def __init__(self, url: str, *, engine: MemoryEngine, **options: Any) -> None:
        super().__init__(url, has_adapters=True, **options)
        self.engine = engine

    async def call(self, method: str, path: str, *, seconds: float, body: dict[str, Any] | None = None) -> Any:
        await asyncio.sleep(0)
        return self.engine.handle(path, body or {})

    async def healthy(self) -> bool:
        return True

    async def limits(self) -> EngineLimits:
        return EngineLimits(64, 4096, 16)

    async def load(self) -> EngineLoad | None:
        return None


@asynccontextmanager
async def connected(engine: MemoryEngine) -> AsyncIterator[EnginePool]:
    """Provide the pool of a new orchestrator."""
    connect = partial(MemoryClient, engine=engine)
    async with EnginePool(["http://engine"], token="", times=TIMES, connect=connect) as pool:
        yield pool


def update_of(folder: Path, number: int, *, attempt: int = 1) -> AdapterUpdate:
    """Publish a version, with the probe of a right trainer."""
    a, b = np.ones((8, 6), np.float32), np.full((4, 8), number, np.float32)
    tensors = {tensor_name(LAYER, "lora_A"): a, tensor_name(LAYER, "lora_B"): b}
    version = f"rl-step-{number:06d}"
    order = publish(folder, tensors, base=folder, version=version, rank=8, alpha=16, number=10 * attempt + number)
    trained = MemoryEngine()
    trained.weights, trained.served = "/base", order
    probe = Probe(ROWS, trained.scores(base=False), 1e-6, expects_change=number > 1, has_adapter=True)
    return AdapterUpdate(FolderUpdate(Path("/base"), "rl-step-000000", base_name=f"attempt {attempt}"), order, probe)


def assert_serves(engine: MemoryEngine, update: AdapterUpdate) -> None:
    """Assert that the engine has exactly this version on its base."""
    assert (engine.weights, engine.version, engine.running) == ("/base", update.version, True)
    assert engine.base == update.base.base_name
    assert engine.served == update.order


async def undisturbed(tmp_path: Path, *, keep: bool) -> tuple[int, int]:
    """Return the number of the first request of an update, and of the last one."""
    engine = MemoryEngine()
    async with connected(engine) as pool:
        await pool.push(update_of(tmp_path / "first", 1))
        first = len(engine.requests)
        await pool.push(update_of(tmp_path / "second", 2), keep_requests=keep)
        return first, len(engine.requests)


@pytest.mark.parametrize("keep", [False, True])
async def test_engine_killed_in_each_phase_gets_base_and_adapter(tmp_path: Path, keep: bool) -> None:
    """At every request of the first update, which loads the base too, and of the second one."""
    _, last = await undisturbed(tmp_path / "u", keep=keep)
    assert last > 20
    for phase in range(last):
        engine = MemoryEngine()
        engine.dies_at = phase
        async with connected(engine) as pool, asyncio.timeout(30):
            for number in (1, 2):
                update = update_of(tmp_path / f"{phase}", number)
                assert await pool.push(update, keep_requests=keep) == ["http://engine"]
            assert_serves(engine, update)


@pytest.mark.parametrize("keep", [False, True])
async def test_orchestrator_killed_in_each_phase_is_followed(tmp_path: Path, keep: bool) -> None:
    """The next attempt finds the engine in any state, and loads its own base and adapter."""
    first, last = await undisturbed(tmp_path / "u", keep=keep)
    for phase in range(first, last):
        engine = MemoryEngine()
        async with connected(engine) as pool:
            await pool.push(update_of(tmp_path / f"{phase}", 1))
        engine.caller_dies_at = len(engine.requests) + phase - first
        dying = MemoryClient("http://engine", engine=engine, token="", session=None)
        with pytest.raises(Killed):
            await update_of(tmp_path / f"{phase}", 2).load(dying, seconds=30, fresh=False, keep_requests=keep)
            await dying.score(ROWS)
            await dying.release()
            raise Killed
        engine.caller_dies_at = -1
        update = update_of(tmp_path / f"{phase}", 2, attempt=2)
        async with connected(engine) as pool, asyncio.timeout(30):
            await pool.push(update)
            assert_serves(engine, update)


class UnusedAdapterEngine(MemoryEngine):
    """An engine that scores without its adapter for some requests."""

    unused = 0
    """Number of such requests that follow."""

    def scores(self, *, base: bool) -> list[list[float]]:
        is_unused, self.unused = self.unused > 0, max(0, self.unused - 1)
        return super().scores(base=base or is_unused)


async def test_base_is_scored_once_per_load_of_it(tmp_path: Path) -> None:
    """An adapter that is not used is found by the scores of before; then the base is loaded, and scored, again."""
    engine, counts = UnusedAdapterEngine(), []
    async with connected(engine) as pool:
        for number, unused in enumerate((0, 0, 0, 1, 0), start=1):
            engine.unused, before = unused, engine.requests.count(SCORE)
            if number == 3:
                engine.restart()
            update = update_of(tmp_path, number)
            await pool.push(update)
            assert_serves(engine, update)
            counts.append(engine.requests.count(SCORE) - before)
    assert counts == [2, 1, 2, 3, 1]


class WritingRanks:
    """Ranks that write one real adapter."""

    count = 1

    def __init__(self, **_: object) -> None:
        pass

    def call(self, method: str, model_dir: Path, folder: Path) -> list[Any]:
        tensors = {tensor_name(LAYER, "lora_A"): np.ones((8, 6)), tensor_name(LAYER, "lora_B"): np.ones((4, 8))}
        return [write_adapter(folder, tensors, IDENTITY, base=model_dir)]


IDENTITY = AdapterIdentity(base="b" * 64, rank=8, alpha=16, modules=("up_proj",))


def publish_once(root: Path, hook: Callable[[str, Any], None]) -> None:
    """Publish a version; `hook`: called before each operation on its files."""
    group = TrainerGroup(ranks=1, config=TrainConfig(), start_ranks=WritingRanks)  # type: ignore[arg-type]
    group._model_dir = root
    sys.addaudithook(hook)
    group.publish_adapter(root / "000001-0123456789ab", version="rl-step-000001", version_id="0123456789ab")


def publish_and_die(root: Path, phase: int, count: Any) -> None:
    """Publish a version in this process, which kills itself before file operation `phase`."""
    operations = 0

    def hook(event: str, arguments: Any) -> None:
        nonlocal operations
        if event.startswith(("open", "os.")) and arguments and str(arguments[0]).startswith(str(root)):
            if operations == phase:
                os.kill(os.getpid(), signal.SIGKILL)
            operations += 1
            count.value = operations

    publish_once(root, hook)


def test_rank_killed_in_each_phase_leaves_whole_versions(tmp_path: Path) -> None:
    """The files of a killed publication are not visible, and the next attempt deletes them."""
    context = multiprocessing.get_context("fork")
    count, seen = context.Value("i", 0), 0
    for phase in range(100):
        root = tmp_path / f"{phase}"
        root.mkdir()
        process = context.Process(target=publish_and_die, args=(root, phase, count))
        process.start()
        process.join()
        folder = root / "000001-0123456789ab"
        if folder.exists():
            order = AdapterOrder(
                folder=str(folder), version="rl-step-000001", version_id="0123456789ab", adapter=IDENTITY
            )
            assert verify_adapter(order) == {LAYER: (4, 6)}
            seen += 1
        checkpoint.remove_asides(root)
        assert [path.name for path in root.iterdir()] == ([folder.name] if folder.exists() else [])
        assert version_store.next_number(root) == (2 if folder.exists() else 0)
        if process.exitcode == 0:
            break
    assert phase == count.value > 5 and seen > 0, "every operation was a phase"


@pytest.mark.parametrize("shift", [0.0, 1.0])
async def test_engine_serves_after_the_trainer_has_scored(tmp_path: Path, shift: float) -> None:
    """The engine loads and scores first. It is judged by the trainer's values; `shift`: of wrong ones."""
    engine, update, scored = MemoryEngine(), update_of(tmp_path, 1), asyncio.Event()
    assert isinstance(update.probe, Probe) and update.probe.expected is not None
    expected = [[value + shift for value in row] for row in update.probe.expected]
    probe = replace(update.probe, expected=expected)

    async def scoring() -> Probe:
        await scored.wait()
        return probe

    async with connected(engine) as pool, asyncio.timeout(30):
        pending = PendingProbe(ROWS, scoring(), has_adapter=True)
        pushing = asyncio.create_task(pool.push(replace(update, probe=pending)))
        while engine.requests.count(SCORE) < 2:
            await asyncio.sleep(0)
        assert (pool.serving, engine.version) == ([], update.version)
        scored.set()
        if not shift:
            assert await pushing == ["http://engine"]
            return
        while engine.version != LOADING:
            await asyncio.sleep(0)
        assert pool.serving == []
        pushing.cancel()


async def test_engine_without_scores_of_the_trainer_is_refused() -> None:
    """A trainer that fails is no reason to serve, and does not stop the task of the engine."""

    async def scoring() -> Probe:
        raise StageFailed("RanksLost", "rank 1 was killed", retryable=True)

    with pytest.raises(EngineUnavailable, match="has not scored the probe: rank 1 was killed"):
        await complete(PendingProbe(ROWS, scoring(), has_adapter=True))
