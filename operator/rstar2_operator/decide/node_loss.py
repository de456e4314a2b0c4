"""spec.nodeLoss: the pods of a node that does not report any more, and a new attempt on other nodes.

When a kubelet stops to report, the node controller sets the node's condition Ready to Unknown after about 40 s, and
those of its pods to False; the state of their containers stays as it was. A kubelet that itself reports Ready=False
still stops pods, so its node is faulty and not lost. The operator watches nodes, if it has the right, and reads the
pods otherwise; a pod that was not ready yet then shows nothing. Kubernetes deletes the pods after 5 more minutes, but
they remain until the node answers. After `nodeLoss.afterSeconds` the operator deletes the Job of the attempt, so that
the orchestrator can write a checkpoint, and removes the pods of the lost node without waiting for it.

A faulty node that reports (node_health.py) is left in the same way, if it is cordoned or tainted: the scheduler could
choose another faulty node again. Its pods terminate with a checkpoint. `status.faultyNodes` has the timers.

A lost node may still run its pods. The storage rejects an older attempt (contracts.AttemptRecord), which fences them.
"""

from __future__ import annotations

from rstar2_operator import names
from rstar2_operator.decide.decision import NODE_LOST, Defer, Verdict
from rstar2_operator.decide.ended_attempt import end_disrupted
from rstar2_operator.decide.facts import Facts
from rstar2_operator.observed import Object, ObservedJob, is_alive, labels, lost_since, seconds, timestamp


def remove_lost_pods(facts: Facts) -> Verdict:
    """Remove terminating pods of lost nodes, in any phase.

    Pods of a running attempt are removed in a later round, after the deletion of their Job.
    """
    removable, due = removable_pods(facts.observed, _after_seconds(facts), now=facts.now)
    return Defer(wake_at=due, remove_pods=tuple(removable)) if removable or due is not None else None


def removable_pods(observed: ObservedJob, after: int | None, *, now: float) -> tuple[list[Object], float | None]:
    """Return the terminating pods of nodes that have not reported for `after` seconds, and when the next is due."""
    lost = [] if after is None else [(pod, since + after) for pod, since in _lost(observed)]
    overdue = [pod for pod, due in lost if now >= due and pod["metadata"].get("deletionTimestamp")]
    return overdue, min((due for _, due in lost if now < due), default=None)


def node_loss(facts: Facts) -> Verdict:
    """End the running attempt if one of its nodes is lost. It counts only after many disruptions in a row."""
    if facts.stage is None or facts.running_job is None:
        return None
    own = facts.stage_name, str(facts.attempt)
    pod = next((overdue for overdue in _overdue(facts) if _attempt_of(overdue) == own), None)
    if pod is None:
        return _leave_faulty_node(facts)
    since = lost_since(pod, facts.observed) or facts.now
    message = (
        f"Node {pod['spec'].get('nodeName', '')} of Pod/{pod['metadata']['name']} has not reported since "
        f"{timestamp(since)}. Attempt {facts.attempt} of stage {facts.stage_name} ends, and a "
        "new one starts on other nodes."
    )
    return end_disrupted(facts, NODE_LOST, message)


def pods_to_move(observed: ObservedJob) -> list[Object]:
    """Return the pods of attempts on faulty nodes that take no new pods."""
    closed = {name for name, fault in observed.node_faults.items() if fault.closed}
    return (
        []
        if not closed
        else [
            pod
            for pod in observed.pods
            if pod["spec"].get("nodeName") in closed
            and names.STAGE_LABEL in labels(pod)
            and is_alive(pod)
            and not pod["metadata"].get("deletionTimestamp")
        ]
    )


def _leave_faulty_node(facts: Facts) -> Verdict:
    """End the running attempt if one of its nodes was faulty and closed for spec.nodeLoss.afterSeconds."""
    after, pods = _after_seconds(facts), pods_to_move(facts.observed)
    if after is None or not pods:
        return None
    known = {node["name"]: seconds(node["since"]) for node in facts.observed.status.get("faultyNodes") or ()}
    pod = min(pods, key=lambda each: known.get(each["spec"]["nodeName"], facts.now))
    node = pod["spec"]["nodeName"]
    due = known.get(node, facts.now) + after
    if facts.now < due:
        return Defer(wake_at=due)
    causes = "; ".join(facts.observed.node_faults[node].causes)
    message = (
        f"Node {node} of Pod/{pod['metadata']['name']} is faulty: {causes}. Attempt {facts.attempt} of stage "
        f"{facts.stage_name} ends, and a new one starts on other nodes."
    )
    return end_disrupted(facts, NODE_LOST, message)


def _after_seconds(facts: Facts) -> int | None:
    policy = facts.job.spec.node_loss
    return None if policy is None else policy.after_seconds


def _lost(observed: ObservedJob) -> list[tuple[Object, float]]:
    """Return the pods of nodes that do not report, and since when."""
    return [(pod, since) for pod in observed.pods if (since := lost_since(pod, observed)) is not None]


def _overdue(facts: Facts) -> list[Object]:
    """Return the pods of nodes that have not reported for spec.nodeLoss.afterSeconds."""
    after = _after_seconds(facts)
    return [] if after is None else [pod for pod, since in _lost(facts.observed) if facts.now >= since + after]


def _attempt_of(pod: Object) -> tuple[str | None, str | None]:
    return labels(pod).get(names.STAGE_LABEL), labels(pod).get(names.ATTEMPT_LABEL)
