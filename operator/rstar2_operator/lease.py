"""The Lease that one replica holds: taken when it is free or has not been renewed, renewed, given back at the end.

Times are those of controller-runtime. Whether a Lease is stale is told by our own clock, from when we last saw it
change: clocks of two nodes need not agree.
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

DURATION_SECONDS = 15
RENEW_SECONDS = 10.0
"""A holder that has not managed to renew for so long stops leading, before anyone else may begin."""
RETRY_SECONDS = 2.0


class LeaderLease:
    """One replica's view of the Lease."""

    def __init__(self, client: KubeClient, *, namespace: str, name: str, identity: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)
        """Resource version last seen, and when by our clock."""
        self._other = False
        """Whether another held it when it was last seen."""

    async def acquire(self) -> None:
        """Wait until this replica holds it."""
        while not await self._try():  # noqa: ASYNC110 (it is the API server that is asked)
            await asyncio.sleep(RETRY_SECONDS)

    async def hold(self) -> None:
        """Renew it for ever; returns when it is lost: at once when another holds it."""
        renewed = time.monotonic()
        while not self._other and time.monotonic() - renewed < RENEW_SECONDS:
            await asyncio.sleep(RETRY_SECONDS)
            began = time.monotonic()
            if await self._try(within=renewed + RENEW_SECONDS - began):
                renewed = began

    async def release(self) -> None:
        """Give it back, so that the other replica need not wait for it to run out."""
        try:
            lease = await self._client.read("Lease", self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.replace(lease)
        except (ApiException, *UNREACHABLE) as error:
            log.warning("the Lease could not be given back: %s", error)

    async def _try(self, *, within: float | None = None) -> bool:
        """Take or renew it; False when another holds it, or the API server cannot be reached `within` seconds."""
        try:
            async with asyncio.timeout(within):
                return await self._take()
        except ApiException as error:
            if error.status not in (404, 409):  # somebody else was quicker
                log.warning("the Lease %s/%s: %s %s", self._namespace, self._name, error.status, error.reason)
        except UNREACHABLE as error:
            log.warning("the API server cannot be reached: %s", error or type(error).__name__)
        return False

    async def _take(self) -> bool:
        try:
            lease = await self._client.read("Lease", self._namespace, self._name)
        except ApiException as error:
            if error.status != 404:
                raise
            if self._other and not self._stale(DURATION_SECONDS):  # deleted: its holder makes it again, or is gone
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
        return not self._other or self._stale(float(lease["spec"].get("leaseDurationSeconds", DURATION_SECONDS)))

    def _stale(self, lasts: float) -> bool:
        """Whether the Lease has not changed for so many seconds."""
        return time.monotonic() - self._seen[1] > lasts

    def _held(self, lease: dict[str, Any]) -> dict[str, Any]:
        """The Lease, held by us from now."""
        spec = lease.get("spec", {})
        moment = precise(time.time())
        renewed = spec | {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": moment,
        }
        if spec.get("holderIdentity") != self._identity:
            renewed |= {"acquireTime": moment, "leaseTransitions": spec.get("leaseTransitions", -1) + 1}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease["metadata"], "spec": renewed}
