"""Reads what Kueue's admission refers to: ResourceFlavors and the job's PriorityClass.

Both are cluster-wide and are read once per Workload, without a watch. A flavor that changes later applies to the next
Workload, so that no running pod is replaced.
"""

from __future__ import annotations

from dataclasses import replace

from rstar2_operator.cache import Key
from rstar2_operator.client import KubeClient
from rstar2_operator.decide.kueue import current_workload, flavors_of
from rstar2_operator.observed import Object, ObservedJob


class QuotaReader:
    """The flavors of each job's Workload, and the values of PriorityClasses."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._flavors: dict[Key, tuple[str, dict[str, Object]]] = {}
        """Job -> UID of its Workload, and its flavors by name."""
        self._priorities: dict[str, int] = {}

    async def with_flavors(self, key: Key, observed: ObservedJob) -> ObservedJob:
        """Return the snapshot with the assigned flavors. Raises ApiException."""
        workload, wanted = current_workload(observed), flavors_of(observed)
        if workload is None or not wanted:
            self._flavors.pop(key, None)
            return observed
        uid, flavors = workload["metadata"]["uid"], dict[str, Object]()
        if (known := self._flavors.get(key)) is not None and known[0] == uid:
            flavors = known[1]
        for name in wanted - flavors.keys():
            flavors[name] = await self._client.find("ResourceFlavor", "", name) or {}
        self._flavors[key] = uid, flavors
        return replace(observed, flavors=flavors)

    async def priority(self, name: str) -> int | None:
        """Return the value of a PriorityClass, which is immutable; None if it does not exist. Raises ApiException."""
        if name not in self._priorities:
            priority_class = await self._client.find("PriorityClass", "", name)
            if priority_class is None:
                return None
            self._priorities[name] = int(priority_class["value"])
        return self._priorities[name]

    def forget(self, key: Key) -> None:
        """Drop the flavors of a deleted job."""
        self._flavors.pop(key, None)
