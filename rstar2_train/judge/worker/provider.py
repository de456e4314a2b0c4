"""Where a worker's sandboxes come from: so many of its own, or every executor that is found by name."""

from __future__ import annotations

import asyncio
import os
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rstar2_train.judge.sandbox.base import Sandbox
from rstar2_train.judge.sandbox.local import LocalSandbox
from rstar2_train.judge.sandbox.oci_bundle import SandboxSettings
from rstar2_train.judge.sandbox.remote import RemoteSandbox
from rstar2_train.utils.dns import addresses, split_address

LOOK_SECONDS = 2.0


class SandboxProvider(ABC):
    """Places for sandboxes, and the sandboxes to put there."""

    def __init__(self, *, lanes: tuple[str, ...], state: Path, patient: bool) -> None:
        """`state`: a folder for the worker. `patient`: whether a place that gives no sandbox may give one later."""
        self.lanes = lanes
        self.state = state
        self.patient = patient

    @abstractmethod
    def places(self) -> AsyncIterator[frozenset[str]]:
        """The places there are, again whenever they have changed."""

    @abstractmethod
    def make(self, place: str) -> Sandbox:
        """A sandbox for a place, not started yet."""


class LocalSandboxProvider(SandboxProvider):
    """Sandboxes on this machine."""

    def __init__(self, settings: SandboxSettings, size: int) -> None:
        super().__init__(lanes=settings.lanes, state=settings.state, patient=False)
        self._settings = settings
        self._size = size
        # In an order of its own, so that several judges on a large machine do not all meet on its first cores.
        cores = sorted(os.sched_getaffinity(0))
        self._cores = random.sample(cores, len(cores))

    async def places(self) -> AsyncIterator[frozenset[str]]:
        """So many, once."""
        yield frozenset(map(str, range(self._size)))

    def make(self, place: str) -> Sandbox:
        """A container of our own."""
        return LocalSandbox(self._settings, core=self._cores[int(place) % len(self._cores)])


class RemoteSandboxProvider(SandboxProvider):
    """The executors behind the name of a Service; each serves one worker at a time."""

    def __init__(
        self, service: str, *, key: Ed25519PrivateKey, lanes: tuple[str, ...], state: Path, walled: bool
    ) -> None:
        """`service`: HOST:PORT. Raises ValueError when it is not."""
        super().__init__(lanes=lanes, state=state, patient=True)
        split_address(service)
        self._service = service
        self._key = key
        self._walled = walled

    async def places(self) -> AsyncIterator[frozenset[str]]:
        """Addresses, looked up again and again."""
        last: frozenset[str] | None = None
        while True:
            found = await addresses(self._service)
            if found is not None and found != last:
                last = found
                yield found
            await asyncio.sleep(LOOK_SECONDS)

    def make(self, place: str) -> Sandbox:
        """A connection to an executor."""
        return RemoteSandbox(place, self.lanes, key=self._key, walled=self._walled)
