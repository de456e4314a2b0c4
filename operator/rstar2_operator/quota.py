"""Reads what Kueue's admission refers to: ResourceFlavors and the job's PriorityClass.

Both are cluster-wide and are read once per Workload, without a watch. A flavor that changes later applies to the next
Workload, so that no running pod is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rstar2_operator.client import KubeClient
from rstar2_operator.decide.kueue import current_workload, flavors_of
from rstar2_operator.observed import Object, ObservedJob


@dataclass(slots=True)
class AssignedFlavors:
    """The flavors of one job's Workload."""

    workload: str = ""
    """UID of the Workload."""
    by_name: dict[str, Object] = field(default_factory=dict)


class QuotaReader:
    """Reads flavors, and the values of PriorityClasses."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._priorities: dict[str, int] = {}

    async def with_flavors(self, known: AssignedFlavors, observed: ObservedJob) -> ObservedJob:
        """Return the snapshot with the assigned flavors; `known` receives them. Raises ApiException."""
        workload, wanted = current_workload(observed), flavors_of(observed)
        uid = "" if workload is None or not wanted else workload["metadata"]["uid"]
        if known.workload != uid:
            known.workload, known.by_name = uid, {}
        if not uid:
            return observed
        for name in wanted - known.by_name.keys():
            known.by_name[name] = await self._client.find("ResourceFlavor", "", name) or {}
        return replace(observed, flavors=known.by_name)

    async def priority(self, name: str) -> int | None:
        """Return the value of a PriorityClass, which is immutable; None if it does not exist. Raises ApiException."""
        if name not in self._priorities:
            priority_class = await self._client.find("PriorityClass", "", name)
            if priority_class is None:
                return None
            self._priorities[name] = int(priority_class["value"])
        return self._priorities[name]
