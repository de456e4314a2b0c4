"""Leader election by a Lease: one replica acquires it, renews it, and releases it at its end.

Durations are those of controller-runtime. A Lease is stale if this replica has not seen it change for its duration, so
clocks of two nodes need not agree.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator.client import UNREACHABLE, KubeClient
from rstar2_operator.observed import precise

log = logging.getLogger(__name__)

RENEW_SHARE = 2 / 3
"""Part of the duration without a renewal after which the leader stops leading."""
RETRY_SECONDS = 2.0


class LeaderLease:
    """One replica's view of the Lease."""

    def __init__(self, client: KubeClient, *, namespace: str, name: str, identity: str, duration: int) -> None:
        """`duration`: seconds after the last renewal in which no other replica may lead."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._seen: tuple[str, float] = ("", 0.0)
        """Resource version last seen, and its time by this replica's clock."""
        self._other = False
        """Whether another replica held it when it was last seen."""

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease."""
        while not await self._try():  # noqa: ASYNC110 (polls the API server)
            await asyncio.sleep(RETRY_SECONDS)

    async def hold(self) -> None:
        """Renew the Lease. Return when it is lost; immediately, if another replica holds it."""
        lasts = self._duration * RENEW_SHARE
        renewed = time.monotonic()
        while not self._other and time.monotonic() - renewed < lasts:
            await asyncio.sleep(RETRY_SECONDS)
            started = time.monotonic()
            if await self._try(within=renewed + lasts - started):
                renewed = started

    async def release(self) -> None:
        """Release the Lease, so that the other replica need not wait until it is stale."""
        try:
            lease = await self._client.read("Lease", self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(lease)
        except (ApiException, *UNREACHABLE) as error:
            log.warning("could not release the Lease: %s", error)

    async def _try(self, *, within: float | None = None) -> bool:
        """Acquire or renew; False if another replica holds it, or the API server does not answer `within` seconds."""
        try:
            async with asyncio.timeout(within):
                return await self._take()
        except ApiException as error:
            if error.status not in (404, 409):  # another replica was faster
                log.warning(
                    "could not renew the Lease %s/%s: %s %s", self._namespace, self._name, error.status, error.reason
                )
        except UNREACHABLE as error:
            log.warning("the API server is unreachable: %s", error or type(error).__name__)
        return False

    async def _take(self) -> bool:
        try:
            lease = await self._client.read("Lease", self._namespace, self._name)
        except ApiException as error:
            if error.status != 404:
                raise
            if self._other and not self._stale(self._duration):  # deleted: its holder creates it again, or has exited
                return False
            await self._client.create(self._held({"metadata": {"name": self._name, "namespace": self._namespace}}))
            self._other = False
            return True
        if not self._free(lease):
            return False
        await self._client.replace(self._held(lease))
        self._other = False
        return True

    def _free(self, lease: dict[str, Any]) -> bool:
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        holder = lease.get("spec", {}).get("holderIdentity")
        self._other = holder not in (self._identity, "", None)
        return not self._other or self._stale(float(lease["spec"].get("leaseDurationSeconds", self._duration)))

    def _stale(self, lasts: float) -> bool:
        """Return whether the Lease has not changed for `lasts` seconds."""
        return time.monotonic() - self._seen[1] > lasts

    def _held(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Return the Lease, held by this replica from now."""
        spec = lease.get("spec", {})
        now = precise(time.time())
        renewed = spec | {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._duration,
            "renewTime": now,
        }
        if spec.get("holderIdentity") != self._identity:
            renewed |= {"acquireTime": now, "leaseTransitions": spec.get("leaseTransitions", -1) + 1}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease["metadata"], "spec": renewed}
