"""Events say what happened between two statuses, as `kubectl describe` shows it."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator.decide.events import NORMAL, WARNING, JobEvent, events

WELL = {"type": "Degraded", "status": "False", "reason": "AsExpected", "message": ""}


def row(phase: str, attempts: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": "rl-1", "type": "GRPO", "phase": phase, "attempts": attempts, **more}


def status(stage: dict[str, Any], phase: str = "Running", message: str = "attempt 1 of stage rl-1") -> dict[str, Any]:
    return {"phase": phase, "message": message, "stage": "rl-1", "stages": [stage], "conditions": [WELL],
            "observedGeneration": 1}  # fmt: skip


AGAIN = "attempt 2 of stage rl-1, after the driver ended by signal 9"

PREPARING = JobEvent(NORMAL, "Preparing", "bringing data and model into the storage", "Prepare")
CHANGED = JobEvent(
    NORMAL,
    "SpecChanged",
    "the spec was changed: the roles' pods follow now, stage rl-1 goes on with the settings that its attempt began "
    "with (to have them reread: suspend and resume)",
)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (status(row("Waiting", 0)), status(row("Running")),
         [JobEvent(NORMAL, "StageStarted", "stage rl-1 (GRPO)", "RunStage")]),
        (status(row("Restarting")), status(row("Running", 2), message=AGAIN),
         [JobEvent(NORMAL, "StageStarted", f"stage rl-1 (GRPO): {AGAIN}", "RunStage")]),
        (status(row("Running")), status(row("Done", step=8, reason="StepsReached", metrics={"reward": "0.5"})),
         [JobEvent(NORMAL, "StageCompleted", "stage rl-1 after 8 steps, reward 0.5 (StepsReached)", "RunStage")]),
        (status(row("Running")), status(row("Done", step=1)),
         [JobEvent(NORMAL, "StageCompleted", "stage rl-1 after 1 step", "RunStage")]),
        (status(row("Running")), status(row("Restarting"), "Restarting", "a pod was lost"),
         [JobEvent(WARNING, "Restarting", "a pod was lost", "Restart")]),
        (status(row("Running")), status(row("Running", step=3)), []),
        (status(row("Running"), "Suspended"), status(row("Waiting"), "Preparing"),
         [JobEvent(NORMAL, "Resumed", "going on where it stopped", "Resume"), PREPARING]),
        (status(row("Running"), "Suspended"), status(row("Running", 2), message=AGAIN),
         [JobEvent(NORMAL, "Resumed", "going on where it stopped", "Resume"),
          JobEvent(NORMAL, "StageStarted", f"stage rl-1 (GRPO): {AGAIN}", "RunStage")]),
        (status(row("Running")), status(row("Running")) | {"observedGeneration": 2}, [CHANGED]),
        (status(row("Running"), "Suspended"), status(row("Running"), "Suspended") | {"observedGeneration": 2}, []),
    ],
)  # fmt: skip
def test_what_is_said(old: dict[str, Any], new: dict[str, Any], said: list[JobEvent]) -> None:
    assert events(old, new) == said


@pytest.mark.parametrize(("phase", "said"), [("Running", ["Recovered"]), ("Suspending", ["Suspending"]),
                                             ("Invalid", ["InvalidSpec"])])  # fmt: skip
def test_only_a_job_that_goes_on_has_recovered(phase: str, said: list[str]) -> None:
    ill = {"type": "Degraded", "status": "True", "reason": "ImagePullBackOff", "message": "no image"}
    old, new = status(row("Running")) | {"conditions": [ill]}, status(row("Running"), phase)
    assert [event.reason for event in events(old, new)] == said


def test_the_same_cause_at_another_role_is_said_by_what_it_touches() -> None:
    ill = {"type": "Degraded", "status": "True", "reason": "Unschedulable", "message": "redis\nrollout"}
    redis = {"type": "RedisReady", "status": "False", "reason": "Unschedulable", "message": "redis"}
    rollout = {"type": "RolloutReady", "status": "False", "reason": "Starting", "message": ""}
    old = status(row("Running")) | {"conditions": [redis, rollout, ill]}
    new = status(row("Running")) | {"conditions": [redis, rollout | {"reason": "Unschedulable", "message": "4"}, ill]}
    assert events(old, new) == [JobEvent(WARNING, "Unschedulable", "4", "Watch", recurs=True)]
    assert events(new, old) == []
