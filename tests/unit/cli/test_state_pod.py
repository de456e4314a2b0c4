"""The pod of `kubectl rstar2 view` and `verify`, from the Jobs that the operator's builders make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_operator.builders import trainer
from rstar2_operator.builders.objects import build_context
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.validation import load
from rstar2_train.cli import kubectl_plugin
from rstar2_train.cli.kubectl import KubectlFailed
from rstar2_train.cli.state_pod import claim_of, newest_template, node_of_claim, on_node, pod_of, problem
from scripts.setup import ROOT

JOB = {"apiVersion": "rstar2.dev/v1alpha1", "kind": "AgenticRLJob", "metadata": {"name": "tiny", "uid": "u-1"}}
PATCH = {
    "manager": "tests",
    "roles": ["trainer"],
    "imagePullSecrets": [{"name": "registry"}],
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "env": [{"name": "PATH", "value": "/venv/bin"}],
    "labels": {"team": "a"},
}


def jobs() -> list[dict[str, Any]]:
    """Return the Jobs for preparation and report, with a claim of a source and Secrets of the site."""
    manifest = read_manifest(ROOT / "examples" / "tiny.yaml")
    manifest["spec"] |= {
        "model": {"source": "pvc://models/qwen"},
        "runtimePatches": [PATCH],
        "secretRefs": {"hubToken": {"name": "hub", "key": "token"}, "ca": {"name": "ca", "key": "ca.crt"}},
    }
    context = build_context(load(manifest), OperatorSettings())
    made = [trainer.prepare(context), trainer.report(context, "completed")]
    for hour, job in enumerate(made):
        job["metadata"]["creationTimestamp"] = f"2026-11-27T0{hour}:00:00Z"
    return made


def pod() -> dict[str, Any]:
    return pod_of(JOB, newest_template(jobs(), "tiny"), ["view", "tiny", "--limit", "5"])


def test_state_pod_only_reads() -> None:
    """The claims are mounted read-only; there is no token, no Secret, no other volume; the user is restricted."""
    spec = pod()["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert {volume["name"] for volume in spec["volumes"]} == {"tmp", "state", "claim-0"}
    mounts = {mount["name"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert mounts == {"tmp": False, "state": True, "claim-0": True}
    assert "secret" not in json.dumps(spec).lower().replace("imagepullsecrets", "")
    assert spec["securityContext"]["runAsNonRoot"] and container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["command"] == [
        *("python", "-m", "rstar2_train.cli", "view", "tiny", "--limit", "5", "--state", "/state")
    ]
    assert claim_of(pod()) == "tiny-state"


def test_state_pod_fits_the_cluster_and_is_not_selected() -> None:
    """Patches of the site are kept; no Service, policy, Job or operator selects the pod; it is deleted with the job."""
    made = pod()
    assert made["spec"]["imagePullSecrets"] == PATCH["imagePullSecrets"]
    assert made["spec"]["tolerations"] == PATCH["tolerations"]
    assert {"name": "PATH", "value": "/venv/bin"} in made["spec"]["containers"][0]["env"]
    labels = made["metadata"]["labels"]
    assert {key for key in labels if key.startswith(("rstar2.dev/", "app.kubernetes.io/"))} == {"rstar2.dev/view"}
    assert (labels["team"], labels["sidecar.istio.io/inject"]) == ("a", "false")
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def test_newest_template_prefers_jobs_that_suit_any_node() -> None:
    """The report's, else the preparation's, else the newest attempt's; without a Job the message has the reason."""
    prepare, report = jobs()
    attempts = [
        {"metadata": {"labels": {"rstar2.dev/role": "trainer"}, "creationTimestamp": at}, "spec": {"template": at}}
        for at in ("2026-11-27T05:00:00Z", "2026-11-27T06:00:00Z")
    ]
    for given, expected in (
        ([*attempts, report, prepare], report["spec"]["template"]),
        ([*attempts, prepare], prepare["spec"]["template"]),
        (attempts, "2026-11-27T06:00:00Z"),
    ):
        assert newest_template(given, "tiny") == expected
    with pytest.raises(KubectlFailed, match="has not started"):
        newest_template([], "tiny")


def test_state_pod_job_without_claim_is_refused() -> None:
    """A job whose state is in a bucket has no claim; the message names the other way."""
    template = newest_template(jobs(), "tiny")
    for volume in template["spec"]["volumes"]:
        if volume.pop("persistentVolumeClaim", None):
            volume["emptyDir"] = {"sizeLimit": "50Gi"}
    with pytest.raises(KubectlFailed, match="rstar2 fetch"):
        pod_of(JOB, template, ["view", "tiny"])


def test_state_pod_joins_the_node_of_a_claim_for_one_node() -> None:
    """It is bound to the node of a pod that has the claim; a claim for one pod is refused while a pod has it."""
    user = {
        "metadata": {"name": "tiny-rl-1-0"},
        "spec": {"nodeName": "n1", "volumes": [{"persistentVolumeClaim": {"claimName": "tiny-state"}}]},
        "status": {"phase": "Running"},
    }
    ended = {**user, "status": {"phase": "Succeeded"}}
    assert node_of_claim([ended, user], "tiny-state", ["ReadWriteOnce"]) == "n1"
    assert node_of_claim([ended], "tiny-state", ["ReadWriteOncePod"]) is None
    with pytest.raises(KubectlFailed, match="ReadWriteOncePod, and pod tiny-rl-1-0 has it"):
        node_of_claim([user], "tiny-state", ["ReadWriteOncePod"])
    made = pod()
    on_node(made, "n1")
    assert '"values": ["n1"]' in json.dumps(made["spec"]["affinity"])


def test_problem_is_the_reason_of_a_pod_that_does_not_run() -> None:
    """The reason of its container, of the scheduler, or of the kubelet."""
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "no node fits"}
    assert problem({"status": {"containerStatuses": [waiting]}}) == "ImagePullBackOff: not found"
    assert problem({"status": {"conditions": [unscheduled]}}) == "not scheduled: no node fits"
    assert problem({"status": {"reason": "Evicted", "message": "disk"}}) == "Evicted: disk"
    assert problem({"status": {"containerStatuses": [{"state": {"running": {}}}]}}) == ""


def kubectl_with_pod(folder: Path, *, terminated: str) -> None:
    """Write a kubectl whose pod has ended, with the state of its container. It records its arguments and pods."""
    pod = '{"metadata": {"name": "p"}, "status": {"phase": "Failed", "containerStatuses": [{"state": {%s}}]}}'
    (folder / "pod.json").write_text(pod % terminated)
    (folder / "jobs.json").write_text(json.dumps({"items": jobs()}))
    (folder / "job.json").write_text(json.dumps(JOB))
    (folder / "kubectl").write_text(
        f"""#!/bin/sh
echo "$@" >> {folder}/calls
case "$1 $2" in
"get agenticrljobs.rstar2.dev") cat {folder}/job.json ;;
"get jobs.batch") cat {folder}/jobs.json ;;
"get persistentvolumeclaims") echo '{{"spec": {{"accessModes": ["ReadWriteMany"]}}}}' ;;
"create -f") cat > {folder}/created.json ;;
"get pod") cat {folder}/pod.json ;;
"logs tiny-verify-"*) echo "different: the values differ" ;;
esac
"""
    )
    (folder / "kubectl").chmod(0o755)


def test_verify_prints_the_verdicts_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """The pod runs `rstar2 verify` on the claim; its output and its exit code are the command's; it is deleted."""
    kubectl_with_pod(tmp_path, terminated='"terminated": {"exitCode": 2}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert kubectl_plugin.main(["verify", "tiny", "--problem", "-p 1", "--sample", "3", "-n", "lab"]) == 2
    assert capfd.readouterr().out == "different: the values differ\n"
    (container,) = json.loads((tmp_path / "created.json").read_text())["spec"]["containers"]
    assert container["command"][3:] == ["verify", "--job=tiny", "--problem=-p 1", "--sample=3", "--state", "/state"]
    assert "delete pod tiny-verify-" in (tmp_path / "calls").read_text().splitlines()[-1]


def test_verify_pod_without_an_exit_code_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """An evicted pod has no verdict: the message has the reason, and the pod is deleted."""
    kubectl_with_pod(tmp_path, terminated='"waiting": {"reason": "Evicted"}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert kubectl_plugin.main(["verify", "tiny", "--problem", "p-1"]) == 1
    assert "without an exit code: Evicted" in capfd.readouterr().err
    assert "delete pod" in (tmp_path / "calls").read_text()
