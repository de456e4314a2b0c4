"""The source of a worker's sandboxes: a fixed number on this machine, or the executors behind a DNS name."""

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
from rstar2_train.utils.dns import resolve_addresses, split_address

LOOKUP_SECONDS = 2.0


class SandboxProvider(ABC):
    """Locations for sandboxes, and the sandboxes to run there."""

    def __init__(self, *, lanes: tuple[str, ...], state: Path, retries_forever: bool) -> None:
        """`state`: folder of the worker. `retries_forever`: whether a location that fails to start may work later."""
        self.lanes = lanes
        self.state = state
        self.retries_forever = retries_forever

    @abstractmethod
    def locations(self) -> AsyncIterator[frozenset[str]]:
        """Yield the current locations, and again after each change."""

    @abstractmethod
    def create(self, location: str) -> Sandbox:
        """Return a new sandbox for a location. The caller starts it."""


class LocalSandboxProvider(SandboxProvider):
    """Sandboxes on this machine. A location is a number from 0."""

    def __init__(self, settings: SandboxSettings, size: int) -> None:
        super().__init__(lanes=settings.lanes, state=settings.state, retries_forever=False)
        self._settings = settings
        self._size = size
        # In random order, so that several judges on a large machine do not share its first cores.
        cores = sorted(os.sched_getaffinity(0))
        self._cores = random.sample(cores, len(cores))

    async def locations(self) -> AsyncIterator[frozenset[str]]:
        """Yield all locations once; they never change."""
        yield frozenset(map(str, range(self._size)))

    def create(self, location: str) -> Sandbox:
        """Return a container for this machine, bound to a core."""
        return LocalSandbox(self._settings, core=self._cores[int(location) % len(self._cores)])


class RemoteSandboxProvider(SandboxProvider):
    """The executors behind the DNS name of a Service. A location is HOST:PORT; each executor serves one worker."""

    def __init__(
        self, service: str, *, key: Ed25519PrivateKey, lanes: tuple[str, ...], state: Path, isolated: bool
    ) -> None:
        """`service`: HOST:PORT. Raises ValueError if it has another form."""
        super().__init__(lanes=lanes, state=state, retries_forever=True)
        split_address(service)
        self._service = service
        self._key = key
        self._isolated = isolated

    async def locations(self) -> AsyncIterator[frozenset[str]]:
        """Yield the addresses behind the name; look it up every LOOKUP_SECONDS."""
        last: frozenset[str] | None = None
        while True:
            current = await resolve_addresses(self._service)
            if current is not None and current != last:
                last = current
                yield current
            await asyncio.sleep(LOOKUP_SECONDS)

    def create(self, location: str) -> Sandbox:
        """Return a connection to the executor at this address."""
        return RemoteSandbox(location, self.lanes, key=self._key, isolated=self._isolated)
