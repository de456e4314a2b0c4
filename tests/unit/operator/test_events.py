"""Events from the difference between two statuses, as `kubectl describe` shows them."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator.decide.events import NORMAL, WARNING, JobEvent, events

WELL = {"type": "Degraded", "status": "False", "reason": "AsExpected", "message": ""}
AGAIN = "Attempt 2 of stage rl-1. Last failure: Crashed: the orchestrator was killed by signal 9"
RESUMED = JobEvent(NORMAL, "Resumed", "The job resumes from its last checkpoint.", "Resume")
PREPARING = JobEvent(NORMAL, "Preparing", "Downloading model and datasets.", "Prepare")
CHANGED = JobEvent(
    NORMAL,
    "SpecChanged",
    "Spec changed. Engine, judge and Redis pods are updated now; stage rl-1 keeps its settings until its next attempt. "
    "To apply them now, suspend and resume the job.",
)


def row(phase: str, attempts: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": "rl-1", "type": "GRPO", "phase": phase, "attempts": attempts, **more}


def status(
    stage: dict[str, Any], phase: str = "Running", message: str = "Attempt 1 of stage rl-1.", reason: str = "Running"
) -> dict[str, Any]:
    training = {"type": "Training", "status": "False", "reason": reason, "message": message}
    return {"phase": phase, "message": message, "stage": "rl-1", "stages": [stage], "conditions": [WELL, training],
            "observedGeneration": 1}  # fmt: skip


RUNNING = status(row("Running"))
FINALIZING = status(row("Failed"), "Finalizing")
IGNORED = {"type": "SpecIgnored", "status": "True", "reason": "JobFails", "message": "No attempt."}
STARTED_AGAIN = JobEvent(NORMAL, "StageStarted", f"Stage rl-1 (GRPO) started. {AGAIN}", "RunStage")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            status(row("Pending", 0)), RUNNING,
            [JobEvent(NORMAL, "StageStarted", "Stage rl-1 (GRPO) started.", "RunStage")], id="first attempt",
        ),
        pytest.param(
            status(row("Pending"), "Pending", reason="BackOff"), status(row("Running", 2), message=AGAIN),
            [STARTED_AGAIN], id="second attempt",
        ),
        pytest.param(
            RUNNING, status(row("Succeeded", step=8, reason="StepsReached", metrics={"reward": "0.5"})),
            [JobEvent(NORMAL, "StageSucceeded", "Stage rl-1 succeeded after 8 steps, reward 0.5 (StepsReached).",
                      "RunStage")], id="stage succeeded",
        ),
        pytest.param(
            RUNNING, status(row("Succeeded", step=1)),
            [JobEvent(NORMAL, "StageSucceeded", "Stage rl-1 succeeded after 1 step.", "RunStage")], id="one step",
        ),
        pytest.param(
            RUNNING, status(row("Pending"), "Pending", "A pod was lost.", "WaitingForPodTermination"),
            [JobEvent(WARNING, "Restarting", "A pod was lost.", "Restart")], id="restart",
        ),
        pytest.param(
            status(row("Pending"), "Pending", "A pod was lost.", "WaitingForPodTermination"),
            status(row("Pending"), "Pending", "Stage rl-1 restarts soon.", "BackOff"), [], id="still restarting",
        ),
        pytest.param(
            RUNNING, status(row("Pending"), "Pending", "Released all pods.", "SchedulingTimeout"),
            [JobEvent(WARNING, "SchedulingTimeout", "Released all pods.", "Release")], id="released",
        ),
        pytest.param(RUNNING, status(row("Running", step=3)), [], id="step"),
        pytest.param(
            status(row("Running"), "Suspended"), status(row("Pending"), "Preparing", PREPARING.message, "Preparing"),
            [RESUMED, PREPARING], id="resume before the first stage",
        ),
        pytest.param(
            status(row("Running"), "Suspended"), status(row("Running", 2), message=AGAIN), [RESUMED, STARTED_AGAIN],
            id="resume",
        ),
        pytest.param(RUNNING, RUNNING | {"observedGeneration": 2}, [CHANGED], id="spec of a running job"),
        pytest.param(
            FINALIZING, FINALIZING | {"observedGeneration": 2, "conditions": [WELL, IGNORED]},
            [JobEvent(WARNING, "SpecIgnored", "No attempt.", "Validate")], id="spec of a job that fails",
        ),
        pytest.param(
            status(row("Running"), "Suspended"), status(row("Running"), "Suspended") | {"observedGeneration": 2}, [],
            id="spec of a suspended job",
        ),
    ],
)  # fmt: skip
def test_events_of_two_statuses(old: dict[str, Any], new: dict[str, Any], expected: list[JobEvent]) -> None:
    """Each transition has the Events that a person needs, and a change of figures has none."""
    assert events(old, new) == expected


@pytest.mark.parametrize(
    ("phase", "reason", "expected"),
    [
        ("Running", "Running", ["Recovered"]),
        ("Suspending", "Suspending", ["Suspending"]),
        ("Running", "InvalidSpec", ["InvalidSpec"]),
    ],
)
def test_events_recovered_only_while_running(phase: str, reason: str, expected: list[str]) -> None:
    """A job that deletes its pods, or whose spec is invalid, has not recovered from a problem."""
    ill = {"type": "Degraded", "status": "True", "reason": "ImagePullBackOff", "message": "no image"}
    old, new = status(row("Running")) | {"conditions": [ill]}, status(row("Running"), phase, reason=reason)
    assert [event.reason for event in events(old, new)] == expected


def test_events_changed_spec_of_a_current_attempt() -> None:
    """A change that needs no new attempt does not ask the user for one."""
    (event,) = events(RUNNING, RUNNING | {"observedGeneration": 2}, attempt_is_current=True)
    assert event.message == "Spec changed. The changed fields take effect now. Stage rl-1 needs no new attempt."


def test_events_same_cause_at_another_role_names_the_role() -> None:
    """A known reason that blocks another role gives the Event of that role's condition, not that of Degraded."""
    ill = {"type": "Degraded", "status": "True", "reason": "Unschedulable", "message": "redis\nrollout"}
    redis = {"type": "RedisReady", "status": "False", "reason": "Unschedulable", "message": "redis"}
    rollout = {"type": "RolloutReady", "status": "False", "reason": "Starting", "message": ""}
    old = RUNNING | {"conditions": [redis, rollout, ill]}
    new = RUNNING | {"conditions": [redis, rollout | {"reason": "Unschedulable", "message": "4"}, ill]}
    expected = JobEvent(WARNING, "Unschedulable", "4", "Watch", recurs=True)
    assert [event for event in events(old, new) if event.kind == WARNING] == [expected]
    assert [event for event in events(new, old) if event.kind == WARNING] == []


def test_events_ready_and_stalled_repeat_no_cause() -> None:
    """Ready and Stalled have the reason of a problem too; only one Event reports it."""
    ill = {"type": "Degraded", "status": "True", "reason": "NameConflict", "message": "taken"}
    both = [ill | {"type": "Ready", "status": "False"}, ill | {"type": "Stalled"}]
    new = RUNNING | {"conditions": [*RUNNING["conditions"], *both, ill]}
    new["conditions"].remove(WELL)
    assert [event.reason for event in events(RUNNING, new)] == ["NameConflict"]
