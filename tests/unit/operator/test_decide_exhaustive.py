"""The policy in every state that events and faults can lead to, in any order, on a cluster with a bounded state."""

from __future__ import annotations

import itertools
import json
from collections import deque
from typing import Any

import pytest

from tests.support.explored_cluster import ExploredCluster
from tests.support.simulated_cluster import manifest

FAIR_ROUNDS = 60
"""Rounds without a fault in which each job must end."""
SPEC = {
    "trainer": {"replicas": 1, "gpusPerReplica": 0},
    "failurePolicy": {"maxRestarts": 1},
    "pendingDeadlineSeconds": 60,
    "nodeLoss": {"afterSeconds": 60},
    "stuck": {"action": "Restart"},
}
FAULTS = [
    *("crash", "misconfigure", "evict", "hang", "lose", "fault", "stick", "inject", "reject", "unstarted"),
    *("secret", "status", "unschedulable", "toggle", "delete"),
]
"""Faults and changes by the user; `toggle` changes spec.suspend."""
PODS = ["init", "silent", "gate", "remove", "vanish"]
"""Faults of pods: a failing init container, no report, a readiness gate, a deletion of pods or Job. Without kills."""
PAIRS = list(itertools.combinations_with_replacement([*FAULTS, *PODS, "kill"], 2))
"""Two faults; a kill of the operator counts as one."""
SUSPENSIONS = [("toggle", "toggle", fault) for fault in [*FAULTS, *PODS, "kill"] if fault != "toggle"]
"""A suspension that ends, and one fault before, during or after it."""


ENDING: dict[str, set[str]] = {}
"""Job -> states from which it is known to end without a further fault, from all explorations of this process."""


def explore(stages: str, faults: tuple[str, ...], *, attempts: int, unlimited_kills: bool, **spec: Any) -> int:
    """Visit every reachable state, check its invariants and that the job ends. Return the number of states.

    A state with more than `attempts` attempts is only followed to its end without faults.
    """
    first = ExploredCluster(manifest(stages, **SPEC, **spec), faults, unlimited_kills=unlimited_kills)
    waiting = deque([(first.snapshot(), ("start",))])
    ending = ENDING.setdefault(json.dumps(first.job), set())
    seen = {(first.key(), first.faults)}
    while waiting:
        snapshot, path = waiting.popleft()
        for action in list(ExploredCluster.restored(snapshot).actions()):
            cluster = ExploredCluster.restored(snapshot)
            cluster.act(action)
            key = cluster.key(), cluster.faults
            if key in seen:
                continue
            seen.add(key)
            history = (*path, action)
            assert (cluster.violations(), history) == ([], history)
            following = cluster.snapshot()
            assert_ends(ExploredCluster.restored(following), ending, history)
            if cluster.attempts() <= attempts:
                waiting.append((following, history))
    return len(seen)


def assert_ends(cluster: ExploredCluster, ending: set[str], history: tuple[str, ...]) -> None:
    """Without a further fault the job ends Succeeded, Failed, Suspended or deleted. `ending`: states known to end."""
    keys = []
    for _ in range(FAIR_ROUNDS):
        key = cluster.key()
        if cluster.ended() or key in ending:
            ending.update(keys)
            return
        keys.append(key)
        cluster.continue_without_faults()
        assert (cluster.violations(), history) == ([], history)
    raise AssertionError((history, cluster.job["status"]))


@pytest.mark.explore
@pytest.mark.parametrize("fault", FAULTS)
def test_decide_one_fault_and_one_kill_in_every_state_end(fault: str) -> None:
    """One fault, and a kill of the operator after any write: the job ends; pods of at most one attempt ever run."""
    faults = ("toggle", "toggle", "kill") if fault == "toggle" else (fault, "kill")  # suspend, then resume
    assert explore("g", faults, attempts=1, unlimited_kills=False) > 100


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_decide_one_fault_and_any_kills_in_every_state_end(fault: str) -> None:
    """One fault, and any kills of the operator."""
    faults = ("toggle", "toggle") if fault == "toggle" else (fault,)
    assert explore("g", faults, attempts=1, unlimited_kills=True) > 100


@pytest.mark.explore
@pytest.mark.parametrize("fault", PODS)
def test_decide_held_or_deleted_pods_in_every_state_end(fault: str) -> None:
    """Pods that never start or report hold no accelerator; a readiness gate and a deletion cost no counted restart."""
    assert explore("g", (fault,), attempts=1, unlimited_kills=False) > 40


@pytest.mark.explore
@pytest.mark.parametrize("fault", ["preempt", "crash", "lose", "stick", "secret", "toggle", "vanish"])
def test_decide_queued_job_never_runs_without_quota(fault: str) -> None:
    """With Kueue: an attempt is created only with an admitted Workload, its pods keep one, and the job ends."""
    faults = (fault, fault) if fault == "toggle" else (fault,)
    assert explore("g", faults, attempts=1, unlimited_kills=False, queueName="team") > 50


@pytest.mark.slow
@pytest.mark.parametrize("faults", [*PAIRS, *SUSPENSIONS], ids="-".join)
def test_decide_faults_in_every_state_end(faults: tuple[str, ...]) -> None:
    """Two faults in any states, or a suspension and a fault, with two stages: the job ends."""
    assert explore("sg", faults, attempts=3, unlimited_kills=False) > 100
