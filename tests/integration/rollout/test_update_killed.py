"""kill -9 of a real engine in each phase of a weight update: it restarts, and gets the right weights."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.pool import EnginePool, PoolTimes
from tests.support.engine import Engine
from tests.support.folder_hashes import folder_hashes
from tests.support.version_trainer import StagedSender, VersionTrainer, engine_hashes, rank, trainer

__all__ = ["rank", "trainer"]

pytestmark = pytest.mark.timeout(1200)
PHASES = {
    "read": ("/collective_rpc", "rstar2_fetch"),
    "pause": ("/pause?mode=abort", ""),
    "load": ("/collective_rpc", "rstar2_swap"),
    "probe": ("/rstar2/score", ""),
    "transfer": ("/update_weights", ""),
}
"""Route of each phase, and its worker method; `transfer` is that of a collective update."""
OFTEN = ("transfer",)
"""Phases that each run of the tests visits: the engine has a part of the new weights. Each costs a start of vLLM."""


class KillingClient(EngineClient):
    """Kills the engine once, right after the request of one phase has been sent, and starts it again."""

    engine: Engine
    route = ""
    method = ""

    async def call(self, method: str, path: str, **options: Any) -> Any:
        cls = type(self)
        if path != cls.route or cls.method not in ("", (options.get("body") or {}).get("method")):
            return await super().call(method, path, **options)
        cls.route = ""
        request = asyncio.create_task(super().call(method, path, **options))
        await asyncio.sleep(0.01)
        cls.engine.kill()
        cls.engine.start(wait=False)
        return await request


@pytest.mark.parametrize(
    "phase", [phase if phase in OFTEN else pytest.param(phase, marks=pytest.mark.slow) for phase in PHASES]
)
async def test_engine_killed_in_an_update_is_healed(engine: Engine, trainer: VersionTrainer, phase: str) -> None:
    """The restarted engine has other weights; it serves only after it has loaded the version, bit by bit."""
    KillingClient.engine = engine
    times = PoolTimes(patience=600, load=120, straggler=2, check_interval=0.5, retry_interval=0.2)
    async with EnginePool([engine.url], token=engine.token, times=times, connect=KillingClient) as pool:
        await pool.push(trainer.publish())
        trainer.update(1e-3)
        update = StagedSender(trainer).update if phase == "transfer" else trainer.publish()
        KillingClient.route, KillingClient.method = PHASES[phase]
        assert await pool.push(update, keep_requests=True) == [engine.url]
        assert KillingClient.route == "", "the engine was not killed"
        client = pool.client(engine.url)
        assert await client.weight_version() == update.version
        assert (await engine_hashes(client)).items() >= folder_hashes(trainer.export("after")).items()
