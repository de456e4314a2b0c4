"""spec.nodeLoss: the pods of a node that does not report any more, and a new attempt on other nodes.

When a kubelet stops to report, the node controller sets the pods' condition Ready to False after about 40 s; the state
of their containers stays as it was. Kubernetes deletes the pods after 5 more minutes, but they remain until the node
answers. After `nodeLoss.afterSeconds` the operator deletes the Job of the attempt, so that the orchestrator can write a
checkpoint, and removes the pods of the lost node without waiting for it.

A lost node may still run its pods. The storage rejects an older attempt (contracts.AttemptRecord), which fences them.
"""

from __future__ import annotations

import dataclasses

from rstar2_operator import names
from rstar2_operator.decide.plan import NODE_LOST, Plan
from rstar2_operator.observed import Object, ObservedJob, labels, lost_since, timestamp
from rstar2_train.api.job import AgenticRLJob


def with_lost_nodes(plan: Plan, job: AgenticRLJob, observed: ObservedJob, *, now: float) -> Plan:
    """Return the plan with the consequences of nodes that are lost for longer than spec.nodeLoss.afterSeconds."""
    policy = job.spec.node_loss
    lost = [(pod, since) for pod in observed.pods if (since := lost_since(pod)) is not None]
    if policy is None or not lost:
        return plan
    overdue = [pod for pod, since in lost if now >= since + policy.after_seconds]
    waiting = [since + policy.after_seconds for _, since in lost if now < since + policy.after_seconds]
    if waiting:
        wake_at = min(waiting) if plan.wake_at is None else min(plan.wake_at, *waiting)
        plan = dataclasses.replace(plan, wake_at=wake_at)
    if plan.attempt is not None and (pods := [pod for pod in overdue if _is_of_attempt(pod, plan)]):
        node, name = pods[0]["spec"].get("nodeName", ""), pods[0]["metadata"]["name"]
        message = (
            f"Node {node} of Pod/{name} has not reported since {timestamp(lost_since(pods[0]) or now)}. Attempt "
            f"{plan.attempt.number} of stage {plan.attempt.stage} ends, and a new one starts on other nodes."
        )
        plan = dataclasses.replace(plan, phase="Pending", reason=NODE_LOST, message=message, attempt=None)
    # Pods of a running attempt are removed in a later round, after the deletion of their Job.
    removable = [pod for pod in overdue if pod["metadata"].get("deletionTimestamp")]
    return dataclasses.replace(plan, remove_pods=tuple(removable))


def _is_of_attempt(pod: Object, plan: Plan) -> bool:
    attempt = plan.attempt
    own = labels(pod).get(names.STAGE_LABEL), labels(pod).get(names.ATTEMPT_LABEL)
    return attempt is not None and own == (attempt.stage, str(attempt.number))
