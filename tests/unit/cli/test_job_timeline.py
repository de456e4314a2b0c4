"""The timeline of a job that `kubectl rstar2 status` prints."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rstar2_train.api.loader import read_manifest
from rstar2_train.cli import kubectl_plugin
from rstar2_train.cli.job_timeline import checkpoints, duration, engine_figures, event_rows, timeline

EXAMPLE = Path(__file__).parents[3] / "examples" / "tiny.yaml"


def condition(kind: str, value: bool, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": str(value), "reason": reason, "message": message}


def job(phase: str = "Running", *conditions: dict[str, Any], suspend: bool = False) -> dict[str, Any]:
    row = {"name": "rl", "type": "GRPO", "phase": "Running", "step": 3, "totalSteps": 40, "attempts": 2}
    checkpoint = {"path": "/state/demo/rl/step-3", "step": 3}
    return {
        "metadata": {"name": "demo", "namespace": "lab"},
        "spec": {"suspend": suspend},
        "status": {
            "phase": phase,
            "message": "Attempt 2 of stage rl.",
            "stage": "rl",
            "progressPercentage": 7,
            "estimatedRemainingSeconds": 12_000,
            "restarts": 1,
            "conditions": [*conditions],
            "stages": [{**row, "metrics": {"reward": "0.5"}, "checkpoint": checkpoint}],
            "roles": [{"name": "rollout", "ready": 1, "desired": 2}],
        },
    }


def pod(node: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"rstar2.dev/role": "rollout"}}, "spec": {"nodeName": node}}


def test_timeline_running_job_has_stages_and_nodes() -> None:
    """The timeline of a running job has its step, its time and the nodes of its pods; there is nothing to do."""
    seen = timeline(job(), [pod("b"), pod("a")])
    assert (seen.progress, seen.remaining, seen.restarts) == ("7 %", "3h20m", 1)
    assert (seen.stages[0].step, seen.stages[0].reward) == ("3/40", "0.5")
    assert (seen.roles[0].ready, seen.roles[0].nodes) == (1, ("a", "b"))
    assert (seen.waits_for, seen.problems, seen.next) == ((), (), "Nothing: the job proceeds.")


def test_timeline_waiting_job_names_part_and_problem() -> None:
    """A job that waits names the part, its reason and the problem with its advice."""
    waits = condition("RolloutReady", False, "ImagePullBackOff", "0 of 2 rollout pods ready.")
    degraded = condition("Degraded", True, "ImagePullBackOff", "Pod/x: ImagePullBackOff: not seen. Fix the image.")
    not_needed = condition("JudgeReady", False, "NotNeeded")
    seen = timeline(job("Running", waits, degraded, not_needed))
    assert seen.waits_for == ("RolloutReady: ImagePullBackOff: 0 of 2 rollout pods ready.",)
    assert seen.problems == ("Pod/x: ImagePullBackOff: not seen. Fix the image.",)
    stalled = condition("Stalled", True, "ImagePullBackOff", "Fix the image.")
    assert timeline(job("Running", stalled)).next.endswith("without it: Fix the image.")


def test_timeline_has_an_action_in_each_phase() -> None:
    """Each phase has an action, with the command."""
    assert "kubectl rstar2 resume demo" in timeline(job("Suspended", suspend=True)).next
    assert "kubectl rstar2 logs demo" in timeline(job("Failed")).next
    assert "checkpoint" in timeline(job("Suspending", suspend=True)).next
    unseen = {**job(), "status": {}}
    assert timeline(unseen).phase == "Unknown" and "operator" in timeline(unseen).message


def test_timeline_outdated_status_is_no_progress() -> None:
    """A job proceeds only if its status is that of the operator now, and if the parts exist that it waits for."""
    unseen, edited = {**job(), "status": {}}, job()
    edited["metadata"]["generation"], edited["status"]["observedGeneration"] = 3, 2
    for stale, pods in ((unseen, None), (edited, [pod("a")]), (job(), [])):
        assert "Check that the operator runs" in timeline(stale, pods).next
    waits = condition("RolloutReady", False, "NoPods", "0 of 0 rollout pods ready.")
    starting = condition("JudgeReady", False, "Starting", "0 of 0 judge pods ready.")
    assert timeline(job("Running", waits), [pod("a")]).next == "Nothing: the job proceeds."
    assert timeline(job("Running", starting), [pod("a")]).next.startswith("Nothing runs that the job waits for")


NOW = 1_000_000.0
LATER = "1970-01-12T13:40:00Z"
"""NOW and 400 s before, as text: an operator reacts in this time."""


def progress(step: int, *, age: float = 0.0, phase: str = "Training") -> dict[str, str]:
    report = {"stage": "rl", "attempt": 2, "phase": phase, "step": step, "total_steps": 40, "updated_at": NOW - age}
    return {"progress.json": json.dumps(report)}


@pytest.mark.parametrize(
    ("fields", "reports", "cause"),
    [
        ({}, progress(4), ""),
        ({}, progress(4, age=400), "step 4"),
        ({"stepSeconds": 200}, progress(5), ""),
        ({"stepSeconds": 200}, progress(6), "step 6"),
        ({}, progress(3, age=400, phase="Finished"), "Stage rl has ended"),
        ({}, progress(3, age=400) | {"outcome-rl.json": "{}"}, "Stage rl has ended"),
        ({}, progress(3, phase="Finished"), ""),
        ({}, {"progress.json": "{"}, ""),
    ],
)
def test_timeline_report_without_reaction_is_no_progress(
    fields: dict[str, Any], reports: dict[str, str], cause: str
) -> None:
    """The pods of a job without an operator run until their stage ends; then nothing proceeds."""
    live = job()
    live["status"]["stages"][0] |= fields
    action = timeline(live, [pod("a")], reports=reports, now=NOW).next
    assert (cause in action and "Check that the operator runs" in action) if cause else action.startswith("Nothing")


def test_timeline_event_without_reaction_is_no_progress() -> None:
    """A deletion, a due restart and the end of all pods, to which no operator reacts, are named."""
    deleted, waiting, ended = job(), job("Pending"), pod("a")
    deleted["metadata"]["deletionTimestamp"] = LATER
    waiting["status"]["nextRetryTime"] = LATER
    ended["status"] = {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"finishedAt": LATER}}}]}
    for live, pods in ((deleted, [pod("a")]), (waiting, []), (job(), [ended])):
        assert "Check that the operator runs" in timeline(live, pods, now=NOW).next
        assert "Check that the operator runs" not in timeline(live, [*pods, pod("b")], now=NOW - 390).next
    deleted["status"]["phase"] = "Deleting"
    assert timeline(deleted, [pod("a")], now=NOW).next.startswith("Wait: its pods terminate")


def test_duration_is_short() -> None:
    """A duration has two units at most."""
    assert [duration(each) for each in (None, 59, 61, 3_600, 90_000)] == ["", "<1m", "1m", "1h00m", "1d1h"]


def test_checkpoints_and_events_are_rows() -> None:
    """Checkpoints have a path; Events of both APIs are sorted by time."""
    assert checkpoints(job()) == [{"stage": "rl", "path": "/state/demo/rl/step-3", "step": 3}]
    late = {"metadata": {}, "lastTimestamp": "2026-11-22T09:00:00Z", "reason": "B", "message": "late"}
    early = {"metadata": {}, "eventTime": "2026-11-22T08:00:00.123456Z", "reason": "A", "note": "early"}
    assert [row["message"] for row in event_rows([late, early])] == ["early", "late"]


def test_engine_figures_are_rates() -> None:
    """Tokens per second are the difference of two samples; an engine without requests in one of them was half idle."""
    page = 'vllm:generation_tokens_total{{m="a"}} {}\nvllm:num_requests_running {}\nvllm:kv_cache_usage_perc 0.25\n'
    figures = engine_figures(page.format(100, 0.0), page.format(300, 4.0), 2.0)
    assert figures == {"tokensPerSecond": 100.0, "kvUse": 0.25, "running": 4.0, "idleShare": 0.5}


def test_print_timelines_shows_everything() -> None:
    """The text for a terminal has stage, role, problem and action."""
    text = io.StringIO()
    degraded = condition("Degraded", True, "X", "Pod/x [1]: broken")
    seen = timeline(job("Running", degraded), [pod("node-1")])
    kubectl_plugin.print_timelines(Console(file=text, width=120), [seen], details=True)
    assert all(
        part in text.getvalue() for part in ("lab/demo", "rl", "3/40", "node-1", "Pod/x [1]: broken", "What to do")
    )


@pytest.mark.parametrize(
    "message", ["pods is forbidden: [maximum memory usage is 1Gi]", "no device [/dev/kfd]", "[bold]x"]
)
def test_print_timelines_keeps_brackets(message: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The words of an API server or a kubelet may have brackets, which are no style: no part of them is lost."""
    body, text = job(), io.StringIO()
    body["status"]["message"] = message
    seen = timeline(body)
    kubectl_plugin.print_timelines(Console(file=text, width=200), [seen], details=False)
    assert message in text.getvalue() and "lab" not in text.getvalue()
    monkeypatch.setattr(kubectl_plugin, "_as_table", lambda options: True)
    kubectl_plugin._print_rows(argparse.Namespace(), [{"message": message}], "")
    assert message in capsys.readouterr().out


def test_print_timelines_of_all_namespaces_names_each() -> None:
    """With -A each row has its namespace, also if all jobs are in the same one."""
    for timelines, message in (([timeline(job("Running"))], "lab"), ([], "No AgenticRLJob in any namespace.")):
        text = io.StringIO()
        kubectl_plugin.print_timelines(Console(file=text, width=120), timelines, details=False, everywhere=True)
        assert message in text.getvalue()


def test_plugin_sends_requests_by_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Requests go to kubectl with namespace and context; its error is the plugin's."""
    (tmp_path / "job.json").write_text(json.dumps(job()))
    live = read_manifest(EXAMPLE)
    live["metadata"] |= {"uid": "u", "resourceVersion": "7", "managedFields": [{"manager": "kubectl"}]}
    (tmp_path / "live.json").write_text(json.dumps({**live, "status": {"phase": "Running"}}))
    (tmp_path / "reports.json").write_text(json.dumps({"data": progress(9)}))
    fake = tmp_path / "kubectl"
    fake.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
case "$1 $2" in
"get pods") echo '{{"items": [{{"metadata": {{"labels": {{"rstar2.dev/role": "rollout"}}}}, "spec": {{}}}}]}}' ;;
"get configmaps") cat {tmp_path}/reports.json ;;
"get agenticrljobs.rstar2.dev") cat {tmp_path}/$([ "$3" = live ] && echo live || echo job).json ;;
"patch agenticrljobs.rstar2.dev") echo 'Error: not seen' >&2; exit 1 ;;
esac
"""
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert kubectl_plugin.main(["status", "demo", "-n", "lab", "--context", "c"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed["stages"][0]["step"] == "3/40" and "reports step 9, and the status has 3" in printed["next"]
    assert kubectl_plugin.main(["suspend", "demo"]) == 1
    assert "kubectl rstar2: Error: not seen" in capfd.readouterr().err
    assert kubectl_plugin.main(["logs", "demo", "--role", "trainer", "--stage", "rl", "-f"]) == 0
    capfd.readouterr()
    assert kubectl_plugin.main(["plan", "live"]) == 0
    assert {"rl-1", "rl-2", "rl-3"} <= set(json.loads(capfd.readouterr().out)["stages"])
    assert kubectl_plugin.main(["plan", "live", "--hardware", "h200"]) == 1
    assert "does not suit spec.accelerator.vendor None" in capfd.readouterr().err
    calls = (tmp_path / "calls").read_text()
    assert "get agenticrljobs.rstar2.dev demo -o json --namespace=lab --context=c" in calls
    assert 'patch agenticrljobs.rstar2.dev demo --type=merge -p {"spec": {"suspend": true}}' in calls
    assert "logs -l rstar2.dev/job=demo,rstar2.dev/role=trainer,rstar2.dev/stage=rl" in calls


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_has_all_commands(shell: str) -> None:
    """The completion script has every command and, for bash, valid syntax."""
    script = kubectl_plugin.completion(shell)
    assert all(command in script for command in ("status", "suspend", "resume", "logs", "top"))
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
