"""The operator's real Reconciler on a simulated cluster, one round at a time, without an event loop.

Each round is that of a new operator: it knows only the objects of the cluster, and it writes a changed status
immediately. Validated specs and built objects are kept, because they depend on nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from rstar2_operator.builders.pod import BuildContext
from rstar2_operator.cache import Key
from rstar2_operator.decide.decision import Decision
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.desired import DesiredJob
from rstar2_operator.metrics import Metrics
from rstar2_operator.observed import Object, ObservedJob
from rstar2_operator.reconcile import Reconciler
from rstar2_operator.reconcile_state import ReconcileState
from rstar2_operator.settings import OperatorSettings
from rstar2_operator.status_writer import WriteTimes
from rstar2_operator.workqueue import WorkQueue
from tests.support.memory_api import NAMESPACE

if TYPE_CHECKING:
    from tests.support.simulated_cluster import SimulatedCluster

KEY = NAMESPACE, "demo"
T = TypeVar("T")


class Immediately(WriteTimes):
    """Write each change of the status in the round that makes it."""

    def wait(self, old: Object, new: dict[str, Any]) -> float | None:
        """Return no delay; None without a change."""
        return None if old == new else 0.0


class WithoutTimers(WorkQueue[Key]):
    """The test decides when a round runs."""

    def add_after(self, key: Key, seconds: float) -> None:
        """Plan nothing. A time in the past would start the same round again and again, without a pause."""
        assert seconds >= 0, f"the next round is due {-seconds:.0f} s ago"

    def drop_timer(self, key: Key) -> None:
        """Drop nothing."""


class SteppedOperator(Reconciler):
    """A Reconciler whose rounds a test runs; the cluster is both its watch cache and its client."""

    def __init__(self) -> None:
        self._cluster: SimulatedCluster | None = None
        self._problems: list[Diagnosis] = []
        self._specs: dict[str, DesiredJob] = {}
        super().__init__(
            cache=self,  # type: ignore[arg-type]
            queue=WithoutTimers(),
            client=self,  # type: ignore[arg-type]
            settings=OperatorSettings(kueue=True),
            metrics=Metrics(),
            clock=lambda: self.cluster.now,
        )

    @property
    def cluster(self) -> SimulatedCluster:
        """The cluster of this round."""
        assert self._cluster is not None
        return self._cluster

    def round(self, cluster: SimulatedCluster) -> list[Diagnosis]:
        """Reconcile once; return the rejected objects."""
        self._cluster, self._problems = cluster, []
        self._states.clear()
        completed(self._reconcile(KEY, 0.0))
        return self._problems

    def _state(self, key: Key, job: Object) -> ReconcileState:
        spec = json.dumps([job["metadata"]["uid"], job["spec"]])
        state = ReconcileState(job["metadata"]["uid"], desired=self._specs.setdefault(spec, DesiredJob()))
        state.status = Immediately()
        state.secret.invalidate()  # a new operator asks immediately
        return state

    async def _apply_decision(
        self,
        key: Key,
        state: ReconcileState,
        context: BuildContext,
        decision: Decision,
        observed: ObservedJob,
        *,
        now: float,
    ) -> tuple[list[Diagnosis], float | None]:
        self._problems, correct_in = await super()._apply_decision(key, state, context, decision, observed, now=now)
        return self._problems, correct_in

    # -- cache.WatchCache: without a delay ---------------------------------------------------------------------------

    def observed(self, key: Key) -> ObservedJob | None:
        """Return the objects of the cluster."""
        return None if self.cluster.gone else self.cluster.snapshot_of_watches()

    def record_write(self, kind: str, body: Object) -> None:
        """Do nothing: the cluster has the object."""

    def record_deletion(self, kind: str, body: Object) -> None:
        """Do nothing: the cluster has deleted the object."""

    # -- client.KubeClient -------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Return a request of the cluster."""
        if name in ("apply", "create", "delete", "find", "patch", "read"):
            return getattr(self.cluster, name)
        raise AttributeError(name)


def completed(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("the coroutine waits")
