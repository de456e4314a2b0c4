"""Trainer and engine time-share the only device of a machine: one uses its memory, the other one waits on the host.

`rstar2 run` decides it (launch/local/devices.py). The engine sleeps while the ranks load, train, and write weights or
checkpoints (vLLM's sleep mode, level 1: weights on the host, no KV cache). The ranks sleep while the engine loads
a version, samples and scores the probe. Both methods are called at each point of use; only a change costs time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal

from rstar2_train.api.contracts import ENGINE_START_SECONDS, StageFailed
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.utils.device_lock import DeviceLock

log = logging.getLogger(__name__)

SWITCH_SECONDS = 300.0
"""Longest time of a change of one engine."""


class DeviceSharing:
    """The device of one attempt. Without engines every method has no effect: each has devices of its own."""

    def __init__(
        self, engines: Sequence[str], *, token: str, lock: Path, patience: float = ENGINE_START_SECONDS
    ) -> None:
        """`engines`: base URLs of those on the trainer's device; `lock`: file of the lock that keeps them stopped.

        `patience`: longest wait for an engine that does not answer, in seconds; it may start again.
        """
        self._engines = tuple(engines)
        self._token = token
        self._patience = patience
        self._lock = DeviceLock(lock)
        self._turn: Literal["trainer", "engines"] | None = None
        self._changing = asyncio.Lock()
        self.group: TrainerGroup | None = None
        """The ranks; None before they have loaded a model, and in a stage without a trainer."""

    @property
    def enabled(self) -> bool:
        """Whether trainer and engines time-share a device."""
        return bool(self._engines)

    async def to_trainer(self, *, engines_failed: bool = False) -> None:
        """Give the device to the ranks. `engines_failed`: also if the engines do not answer.

        Raises StageFailed: EngineUnavailable if they do not answer, RanksLost.
        """
        async with self._changing:
            if not self.enabled or self._turn == "trainer":
                return
            started, self._turn = time.monotonic(), None
            try:
                await self._call(EngineClient.sleep, patience=0.0 if engines_failed else self._patience)
            except StageFailed as error:
                if not engines_failed:
                    raise
                log.warning("%s", error)
            await asyncio.to_thread(self._lock.acquire)
            if self.group is not None:
                await asyncio.to_thread(self.group.wake_up)
            self._turn = "trainer"
            log.info("Device switched to the trainer in %.1f s.", time.monotonic() - started)

    async def to_engines(self) -> None:
        """Give the device to the engines. Raises as `to_trainer`."""
        async with self._changing:
            if not self.enabled or self._turn == "engines":
                return
            started, self._turn = time.monotonic(), None
            if self.group is not None:
                await asyncio.to_thread(self.group.sleep)
            self._lock.release()
            await self._call(EngineClient.wake_up, patience=self._patience)
            self._turn = "engines"
            log.info("Device switched to the engines in %.1f s.", time.monotonic() - started)

    async def _call(self, change: Callable[..., Coroutine[Any, Any, None]], *, patience: float) -> None:
        """Call a method of every engine's client; try again if an engine does not answer."""
        deadline = time.monotonic() + patience
        async with EngineSession() as session:
            for url in self._engines:
                client = EngineClient(url, token=self._token, session=session)
                while True:
                    try:
                        await change(client, seconds=SWITCH_SECONDS)
                        break
                    except EngineRejected as error:
                        raise StageFailed("BadConfiguration", str(error), retryable=False) from error
                    except EngineUnavailable as error:
                        if time.monotonic() >= deadline:
                            raise StageFailed("EngineUnavailable", str(error), retryable=True) from error
                    await asyncio.sleep(1.0)
