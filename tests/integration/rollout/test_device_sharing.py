"""Trainer and engine time-share one device, with a real engine. On the CPU it keeps its memory when it sleeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.orchestrator.device_sharing import DeviceSharing
from rstar2_train.utils.ports import free_ports
from tests.support.engine import Engine


async def is_sleeping(engine: Engine) -> bool:
    """Return what the engine reports."""
    headers = {"Authorization": f"Bearer {engine.token}"}
    async with EngineSession() as session, session.http.get(f"{engine.url}/is_sleeping", headers=headers) as response:
        return bool((await response.json())["is_sleeping"])


async def test_device_sharing_engine_sleeps_and_continues(engine: Engine, client: EngineClient, tmp_path: Path) -> None:
    """The engine sleeps while the trainer has the device; the same request has the same tokens before and after it."""
    before = await client.generate([1, 2, 3], max_tokens=8, temperature=0.0)
    turns = DeviceSharing([engine.url], token=engine.token, lock=tmp_path / "lock")
    try:
        for _ in range(2):
            await turns.to_trainer()
            assert await is_sleeping(engine)
            # Another attempt: that of a killed process, which holds no lock.
            await DeviceSharing([engine.url], token=engine.token, lock=tmp_path / "other").to_trainer()
            await turns.to_engines()
            assert not await is_sleeping(engine)
    finally:
        await turns.to_engines()
    after = await client.generate([1, 2, 3], max_tokens=8, temperature=0.0)
    assert after.token_ids == before.token_ids


async def test_device_sharing_lost_engine_fails_the_stage(tmp_path: Path) -> None:
    """An engine that does not answer fails the change; a stage that ends gets the device nevertheless."""
    (port,) = free_ports(1)
    turns = DeviceSharing([f"http://127.0.0.1:{port}"], token="x" * 24, lock=tmp_path / "lock", patience=0.0)
    with pytest.raises(StageFailed) as caught:
        await turns.to_trainer()
    assert caught.value.reason == "EngineUnavailable" and caught.value.retryable
    await turns.to_trainer(engines_failed=True)
