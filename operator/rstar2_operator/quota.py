"""The requests about Kueue: reads what an admission refers to, and writes the status of Workloads.

ResourceFlavors and priority classes are cluster-wide and are read once per Workload, without a watch. A flavor that
changes later applies to the next Workload, so that no running pod is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rstar2_operator import names
from rstar2_operator.client import KubeClient
from rstar2_operator.decide.decision import Decision
from rstar2_operator.decide.kueue import current_workload, flavors_of
from rstar2_operator.decide.workload_status import MANAGER, own_conditions, returns_quota, without_quota
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
        self._priorities: dict[tuple[str, str], int] = {}
        """Kind and name -> value."""

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

    async def priority(self, kind: str, name: str) -> int | None:
        """Return the value of a PriorityClass or WorkloadPriorityClass, which is immutable; None if it does not exist.

        Raises ApiException.
        """
        if (kind, name) not in self._priorities:
            priority_class = await self._client.find(kind, "", name)
            if priority_class is None:
                return None
            self._priorities[kind, name] = int(priority_class["value"])
        return self._priorities[kind, name]

    async def report(self, observed: ObservedJob, decision: Decision, *, now: float) -> list[Object]:
        """Write the status of the job's Workload that Kueue expects of an owner. Return it if it was written.

        Raises ApiException.
        """
        workload = current_workload(observed)
        if workload is None:
            return []
        meta = {field: workload["metadata"][field] for field in ("name", "namespace", "uid")}
        body = {"apiVersion": names.KUEUE_API, "kind": "Workload", "metadata": meta}
        if returns_quota(observed, decision):
            live = await self._client.read("Workload", meta["namespace"], meta["name"])
            body["metadata"] = {**meta, "resourceVersion": live["metadata"]["resourceVersion"]}
            body["status"] = without_quota(live, now=now)
            return [await self._client.apply(body, subresource="status", manager=MANAGER)]
        conditions = own_conditions(observed, decision, now=now)
        if not conditions:
            return []
        return [await self._client.apply({**body, "status": {"conditions": conditions}}, subresource="status")]
