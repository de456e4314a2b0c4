"""The timeline of a job in a cluster, from its AgenticRLJob and pods as kubectl prints them. Pure.

`kubectl rstar2` (kubectl_plugin.py) prints it: what runs, what the job waits for, and what to do.
"""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from rstar2_train.api.contracts import PROGRESS_KEY, Progress, outcome_key

Object = Mapping[str, Any]
ROLE_LABEL, STAGE_LABEL = "rstar2.dev/role", "rstar2.dev/stage"
PARTS = ("StorageReady", "RedisReady", "JudgeReady", "RolloutReady", "PodsScheduled", "Training")
"""Conditions of the parts of a job, in the order in which they become True."""
NO_REASON = frozenset({"NotNeeded", "NoPods", "NotSuspended"})
"""Reasons of a False condition for which a running job does not wait."""
NEXT = {
    "Succeeded": "Nothing. The checkpoints are in the job's storage: `kubectl rstar2 checkpoints {name}`.",
    "Suspended": "`kubectl rstar2 resume {name}` continues from the last checkpoint.",
    "Deleting": "Wait: its pods terminate, then the job is gone.",
    "Failed": "Read the message, then `kubectl rstar2 events {name}` and `kubectl rstar2 logs {name} --role trainer`.",
}


CHECK_OPERATOR = (
    "{cause} Check that the operator runs and serves this namespace: `kubectl get pods -A -l "
    "app.kubernetes.io/component=operator`."
)


@dataclass(frozen=True, slots=True)
class StageLine:
    """One stage."""

    name: str
    type: str
    phase: str
    step: str
    """Steps done and steps of the stage, such as 12/40."""
    attempts: int
    reward: str
    message: str


@dataclass(frozen=True, slots=True)
class RoleLine:
    """One role."""

    role: str
    ready: int
    desired: int
    nodes: tuple[str, ...]
    """Nodes of its pods."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One job."""

    namespace: str
    name: str
    phase: str
    message: str
    progress: str
    remaining: str
    """Estimated time until the stage ends; empty if unknown."""
    restarts: int
    waits_for: tuple[str, ...]
    """Parts that are not ready, with the reason."""
    problems: tuple[str, ...]
    """Problems, each with its advice."""
    next: str
    """Action for the user."""
    stages: tuple[StageLine, ...]
    roles: tuple[RoleLine, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


LATE_SECONDS = 300.0
"""Time after which a running operator has reacted to an event; its status is at most a minute late."""


def timeline(
    job: Object,
    pods: Iterable[Object] | None = None,
    *,
    reports: Mapping[str, str] | None = None,
    now: float | None = None,
) -> Timeline:
    """Return the timeline of a job.

    Args:
        job: the AgenticRLJob.
        pods: its pods; None if they are unknown.
        reports: the data of its progress ConfigMap, which the orchestrator writes without the operator.
        now: seconds since the epoch; default: the present.
    """
    meta, status, own = job["metadata"], job.get("status") or {}, None if pods is None else list(pods)
    phase = str(status.get("phase") or "Unknown")
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    degraded = conditions.get("Degraded") or {}
    problems = tuple(degraded.get("message", "").splitlines()) if degraded.get("status") == "True" else ()
    share, suspended = status.get("progressPercentage"), bool(job["spec"].get("suspend"))
    waits = tuple(_waits(conditions)) if phase in ("Pending", "Preparing", "Running") else ()
    return Timeline(
        namespace=meta["namespace"],
        name=meta["name"],
        phase=phase,
        message=status.get("message") or ("" if status else "The operator has not seen this job. Does it run?"),
        progress="" if share is None else f"{share} %",
        remaining=duration(status.get("estimatedRemainingSeconds")),
        restarts=int(status.get("restarts") or 0),
        waits_for=waits,
        problems=problems,
        next=_outdated(job, own, reports or {}, now=time.time() if now is None else now)
        or _next(meta["name"], phase, problems, conditions, waits, suspended=suspended),
        stages=tuple(_stage(row) for row in status.get("stages") or ()),
        roles=tuple(_roles(status.get("roles") or (), own or ())),
    )


def _waits(conditions: Mapping[str, Object]) -> Iterable[str]:
    for kind in PARTS:
        part = conditions.get(kind)
        if part is not None and part["status"] == "False" and part["reason"] not in NO_REASON:
            message = (part.get("message") or "").splitlines()
            yield f"{kind}: {part['reason']}" + (f": {message[0]}" if message else "")


def _outdated(job: Object, pods: Sequence[Object] | None, reports: Mapping[str, str], *, now: float) -> str:
    """Return what to do if the operator does not keep the status up to date; empty if nothing shows that."""
    cause = _inaction(job, pods, reports, now=now)
    return CHECK_OPERATOR.format(cause=cause) if cause else ""


def _inaction(job: Object, pods: Sequence[Object] | None, reports: Mapping[str, str], *, now: float) -> str:
    """Return an event to which no operator has reacted; empty without one."""
    status, deleted = job.get("status") or {}, job["metadata"].get("deletionTimestamp")
    if not status:
        return "The operator has not seen this job."
    if int(status.get("observedGeneration") or 0) < int(job["metadata"].get("generation") or 0):
        return "The operator has not seen the last change of the job."
    if deleted and _is_past(deleted, now) and (status.get("phase") != "Deleting" or pods == []):
        return (
            f"The job was deleted at {deleted}, and the operator has not ended it. Without an operator: `kubectl patch "
            f'arl {job["metadata"]["name"]} --type=merge -p \'{{"metadata":{{"finalizers":null}}}}\'`.'
        )
    if (retry := status.get("nextRetryTime")) and _is_past(retry, now):
        return f"The next attempt was due at {retry}."
    if status.get("phase") != "Running":
        return ""
    running = {(pod["metadata"].get("labels") or {}).get(ROLE_LABEL) for pod in pods or () if not _has_ended(pod, now)}
    for row in status.get("roles") or ():
        if pods is not None and row.get("ready") and row["name"] not in running:
            return f"The status has {row['ready']} {row['name']} pods, which do not run."
    return _unseen_report(status, reports, now)


def _is_past(timestamp: str, now: float) -> bool:
    """Return whether a time is so long ago that an operator must have reacted."""
    return datetime.datetime.fromisoformat(timestamp).timestamp() + LATE_SECONDS < now


def _has_ended(pod: Object, now: float) -> bool:
    """Return whether all containers of a pod have exited, so long ago that an operator must have reacted."""
    status = pod.get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    ends = [state["terminated"].get("finishedAt") for state in states if state.get("terminated")]
    ended = status.get("phase") in ("Succeeded", "Failed")
    return ended and all(end is not None and _is_past(end, now) for end in ends)


def _unseen_report(status: Object, reports: Mapping[str, str], now: float) -> str:
    """Return a report of the orchestrator that the status should have; empty without one."""
    try:
        progress = Progress.model_validate_json(reports.get(PROGRESS_KEY, ""))
    except ValidationError:
        return ""
    row: Object = next((stage for stage in status.get("stages") or () if stage["name"] == progress.stage), {})
    silent, steps = now - progress.updated_at, progress.step - int(row.get("step") or 0)
    ended = progress.phase == "Finished" or outcome_key(progress.stage) in reports
    if ended and row.get("phase") == "Running" and progress.attempt >= int(row.get("attempts") or 0):
        return f"Stage {progress.stage} has ended, which the status does not show." if silent > LATE_SECONDS else ""
    if progress.total_steps is not None and steps > 0:
        late = max(silent, (steps - 1) * float(row.get("stepSeconds") or 0))
        if late > LATE_SECONDS:
            return f"The orchestrator reports step {progress.step}, and the status has {row.get('step') or 0}."
    return ""


def _next(
    name: str,
    phase: str,
    problems: Sequence[str],
    conditions: Mapping[str, Object],
    waits: Sequence[str],
    *,
    suspended: bool,
) -> str:
    stalled = conditions.get("Stalled") or {}
    if stalled.get("status") == "True" and phase != "Failed":
        return f"Fix this problem, the job cannot continue without it: {str(stalled.get('message', '')).strip()}"
    if suspended and phase not in ("Suspended", "Deleting", "Succeeded", "Failed"):
        return "Wait: the stage writes its checkpoint, then the pods terminate."
    if phase in NEXT:
        return NEXT[phase].format(name=name)
    if problems:
        return "Read the problems. The job continues by itself when they are resolved."
    if any(" 0 of 0 " in f" {wait.partition(': ')[2].partition(': ')[2]} " for wait in waits):
        return f"Nothing runs that the job waits for: `kubectl describe arl {name}` lists the objects and Events."
    if waits:
        return "Wait: the parts above are starting. If one stays there for minutes, read the Events and logs."
    return "Nothing: the job proceeds."


def _stage(row: Object) -> StageLine:
    step, total = row.get("step"), row.get("totalSteps")
    steps = "" if step is None and total is None else f"{step or 0}/{'?' if total is None else total}"
    return StageLine(
        name=row["name"],
        type=row["type"],
        phase=row.get("phase", ""),
        step=steps,
        attempts=int(row.get("attempts") or 0),
        reward=str((row.get("metrics") or {}).get("reward", "")),
        message=": ".join(filter(None, (row.get("reason"), row.get("message")))),
    )


def _roles(rows: Iterable[Object], pods: Sequence[Object]) -> Iterable[RoleLine]:
    for row in rows:
        own = (pod for pod in pods if (pod["metadata"].get("labels") or {}).get(ROLE_LABEL) == row["name"])
        nodes = sorted({node for pod in own if (node := pod["spec"].get("nodeName"))})
        yield RoleLine(row["name"], int(row.get("ready") or 0), int(row.get("desired") or 0), tuple(nodes))


def duration(seconds: float | None) -> str:
    """Return a duration such as 3h20m; empty for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return "<1m"
    minutes = round(seconds / 60)
    days, hours = divmod(minutes // 60, 24)
    return f"{days}d{hours}h" if days else f"{hours}h{minutes % 60:02}m" if hours else f"{minutes}m"


def checkpoints(job: Object) -> list[dict[str, Any]]:
    """Return the last checkpoint of each stage: stage, step and path in the storage."""
    rows = (job.get("status") or {}).get("stages") or ()
    return [{"stage": row["name"], **row["checkpoint"]} for row in rows if row.get("checkpoint")]


def event_rows(items: Iterable[Object]) -> list[dict[str, str]]:
    """Return time, type, reason and message of Events, oldest first."""
    rows = []
    for event in items:
        last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp")
        when = last or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
        row = {"time": when[:19] + "Z", "type": event.get("type", ""), "reason": event.get("reason", "")}
        rows.append(row | {"message": event.get("message") or event.get("note") or ""})
    return sorted(rows, key=lambda row: row["time"])


def engine_figures(first: str, second: str, seconds: float) -> dict[str, float]:
    """Return tokens/s, KV use and running requests from two pages of an engine's metrics, `seconds` apart."""
    before, after = (_samples(page) for page in (first, second))
    tokens = after.get("vllm:generation_tokens_total", 0.0) - before.get("vllm:generation_tokens_total", 0.0)
    running = after.get("vllm:num_requests_running", 0.0)
    idle = (before.get("vllm:num_requests_running", 0.0) == 0) + (running == 0)
    return {
        "tokensPerSecond": round(tokens / seconds, 1),
        "kvUse": round(after.get("vllm:kv_cache_usage_perc", 0.0), 3),
        "running": running,
        "idleShare": idle / 2,
    }


def _samples(page: str) -> dict[str, float]:
    """Return the sum of each metric of a Prometheus page over its labels."""
    result: dict[str, float] = {}
    for name, value in re.findall(r"^([\w:]+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
        result[name] = result.get(name, 0.0) + float(value)
    return result
