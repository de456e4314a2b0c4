"""The CRD on a real API server: it is accepted, its rules reject faults with a message, kubectl prints its columns.

The faults are those of the offline rules (tests/support/manifests.py), so that both sets of rules stay equal. They are
sent as requests: a start of kubectl takes 20 times as long as its request.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import JobSpec
from rstar2_train.api.loader import read_manifest
from tests.kube_node.cluster import Cluster, CommandFailed
from tests.support.example_manifests import MANIFESTS
from tests.support.good_manifest import GOOD, changed
from tests.support.kube_apiserver import KubeApiserver
from tests.support.manifests import CHANGES, FAULTS, FINE

JOB = GOOD["metadata"]["name"]
JOBS = "/apis/rstar2.dev/v1alpha1/namespaces/{}/agenticrljobs"
DRY_RUN = "dryRun=All&fieldValidation=Strict"


def rejection(api: KubeApiserver, job: dict[str, Any]) -> str:
    """Return the API server's message for a new job, which it does not store; empty if it accepts the job."""
    metadata = {key: value for key, value in job["metadata"].items() if key != "namespace"}
    return api.rejection("POST", f"{JOBS.format('default')}?{DRY_RUN}", {**job, "metadata": metadata})


def create(api: KubeApiserver, namespace: str, job: dict[str, Any] = GOOD) -> dict[str, Any]:
    """Create a job; return it as stored."""
    stored: dict[str, Any] = api.request("POST", f"{JOBS.format(namespace)}?fieldValidation=Strict", job)
    return stored


def apply(served: Cluster, namespace: str, job: dict[str, Any], *arguments: str) -> str:
    """Return the output of a server-side apply by kubectl; a rejection starts with "rejected:"."""
    command = ("apply", "--server-side", *arguments, "-n", namespace, "-f", "-")
    done = served.run("kubectl", *command, stdin=json.dumps(job), check=False)
    return done.stdout if done.returncode == 0 else f"rejected: {done.stderr}"


def test_crd_valid_jobs_are_accepted(shared_api: KubeApiserver) -> None:
    """The valid manifest and all valid changes of it are accepted."""
    for job in (GOOD, *(changed(path, value) for path, value in FINE)):
        assert rejection(shared_api, job) == "", job


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_crd_examples_are_accepted(shared_api: KubeApiserver, path: Path) -> None:
    """Each manifest of examples/ is accepted."""
    assert rejection(shared_api, read_manifest(path)) == ""


@pytest.mark.parametrize(("path", "value", "_offline", "expected"), FAULTS)
def test_crd_fault_is_rejected_with_its_message(
    shared_api: KubeApiserver, path: str, value: object, _offline: str, expected: str | None
) -> None:
    """A fault is rejected with the expected message; one that only the operator can detect is accepted."""
    message = rejection(shared_api, changed(path, value))
    if expected is None:
        assert message == ""  # the operator reports it in a condition
    else:
        assert message and expected in message


@pytest.mark.parametrize(("path", "before", "after", "expected"), CHANGES)
def test_crd_immutable_field_change_is_rejected(
    shared_api: KubeApiserver, namespace: str, path: str, before: object, after: object, expected: str | None
) -> None:
    """An update of an immutable field is rejected with the expected message; other updates are accepted."""
    version = create(shared_api, namespace, changed(path, before))["metadata"]["resourceVersion"]
    job = changed(path, after)
    job["metadata"]["resourceVersion"] = version
    message = shared_api.rejection("PUT", f"{JOBS.format(namespace)}/{JOB}?fieldValidation=Strict", job)
    assert message == "" if expected is None else message and expected in message


def test_crd_kubectl_prints_rejection_and_creates(served: Cluster, namespace: str) -> None:
    """kubectl reports the message of a fault, and creates and replaces a valid job."""

    def response(verb: str, job: dict[str, Any]) -> str:
        done = served.run("kubectl", verb, "-n", namespace, "-f", "-", stdin=json.dumps(job), check=False)
        return done.stdout + done.stderr

    path, value, _, expected = next(fault for fault in FAULTS if fault[3] is not None)
    assert expected is not None and expected in response("create", changed(path, value))
    assert "created" in response("create", GOOD)
    path, _, after, expected = next(change for change in CHANGES if change[3] is not None)
    assert expected is not None and expected in response("replace", changed(path, after))
    path, _, after, _ = next(change for change in CHANGES if change[3] is None)
    assert "replaced" in response("replace", changed(path, after))


def report(cluster: Cluster, namespace: str, **fields: object) -> None:
    """Write a status."""
    body = json.dumps({"status": fields})
    cluster.kubectl("patch", f"arl/{JOB}", "-n", namespace, "--subresource=status", "--type=merge", "-p", body)


def test_crd_columns_scale_and_categories(shared_api: KubeApiserver, served: Cluster, namespace: str) -> None:
    """`kubectl get` prints the columns, `kubectl scale` sets the engines, and the categories contain the job."""
    create(shared_api, namespace)
    report(
        served,
        namespace,
        phase="Running",
        stage="rl",
        step=2,
        reward="0.863",
        progressPercentage=40,
        restarts=1,
        rolloutReplicas=1,
        rolloutSelector="rstar2.dev/role=rollout",
        roles=[{"name": "rollout", "ready": 1, "desired": 2}],
    )
    rows = [line.split() for line in served.kubectl("get", "arl", "-n", namespace, "-o", "wide").splitlines()]
    assert rows[0] == [
        *("NAME", "PHASE", "STAGE", "STEP", "REWARD", "PROGRESS", "RESTARTS"),
        *("TRAINER", "ROLLOUT", "JUDGE", "REASON", "AGE"),
    ]
    assert rows[1][:7] == [JOB, "Running", "rl", "2", "0.863", "40", "1"]
    assert served.kubectl("get", "arl", "-n", namespace).splitlines()[0].split() == [
        *("NAME", "PHASE", "STAGE", "STEP", "REWARD", "PROGRESS", "RESTARTS", "AGE"),
    ]
    assert f"agenticrljob.rstar2.dev/{JOB}" in served.kubectl("get", "ml", "-n", namespace, "-o", "name")
    assert f"agenticrljob.rstar2.dev/{JOB}" in served.kubectl("get", "all", "-n", namespace, "-o", "name")
    served.kubectl("scale", f"arl/{JOB}", "--replicas=3", "-n", namespace)
    assert served.get("arl", JOB, "-n", namespace)["spec"]["rollout"]["replicas"] == 3


def test_crd_malformed_status_is_rejected(shared_api: KubeApiserver, served: Cluster, namespace: str) -> None:
    """A status with a wrong bound, phase or condition is rejected."""
    create(shared_api, namespace)
    for wrong in ({"progressPercentage": 101}, {"phase": "two words"}, {"conditions": [{"type": "A"}]}):
        with pytest.raises(CommandFailed, match="is invalid"):
            report(served, namespace, **wrong)


def test_crd_empty_metrics_are_rejected(shared_api: KubeApiserver, served: Cluster, namespace: str) -> None:
    """Metrics may be absent, not empty: server-side apply turns an emptied map into null, so the operator omits it."""
    create(shared_api, namespace)
    row = {"name": "rl", "type": "GRPO", "phase": "Running", "attempts": 1}
    job = {key: GOOD[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": JOB}}
    subresource = ("--subresource=status", "--field-manager=test")
    for metrics, accepted in (({"metrics": {"loss": "0.5"}}, True), ({"metrics": {}}, False), ({}, True)):
        status = {"phase": "Running", "stages": [row | metrics]}
        output = apply(served, namespace, {**job, "status": status}, *subresource)
        assert ("rejected" not in output) == accepted, output


def test_crd_stored_job_has_defaults(shared_api: KubeApiserver, namespace: str) -> None:
    """The API server fills in defaults, except in spec.grpo, whose unset fields a stage may set."""
    spec = create(shared_api, namespace)["spec"]
    assert spec["rollout"]["replicas"] == 1
    assert spec["judge"]["limits"] == {"timeoutSeconds": 4, "memory": "512Mi", "output": "64Ki", "processes": 48}
    assert spec["accelerator"] == {"vendor": "AMD", "resource": "amd.com/gpu"}
    assert spec["executor"] == {"replicas": 2, "cpu": "1", "isolation": "GVisor", "runtimeClassName": "gvisor"}
    assert spec["redis"]["resources"]["limits"] == {"memory": "2Gi"}
    assert JobSpec.model_validate(spec) == JobSpec.model_validate(GOOD["spec"])
    grpo = copy.deepcopy(GOOD["spec"]["grpo"])
    grpo["objective"]["type"] = "GRPO"  # an objective is one setting: a stage replaces it as a whole
    assert spec["grpo"] == grpo  # no default hides the settings of a stage


def test_crd_server_side_apply_merges_lists_by_key(served: Cluster, namespace: str) -> None:
    """Two managers own different entries of a list, and a stage that one of them inserts keeps its position."""
    apply(served, namespace, GOOD, "--field-manager=user")
    identity = {key: GOOD[key] for key in ("apiVersion", "kind", "metadata")}
    patch = {"manager": "site", "roles": ["trainer"], "nodeSelector": {"pool": "gpu"}}
    output = apply(served, namespace, {**identity, "spec": {"runtimePatches": [patch]}}, "--field-manager=site")
    assert "serverside-applied" in output
    edited = copy.deepcopy(GOOD)
    edited["spec"]["stages"].insert(1, {"name": "rl-0", "type": "GRPO", "grpo": {"data": "p.jsonl", "steps": 1}})
    assert "serverside-applied" in apply(served, namespace, edited, "--field-manager=user")
    spec = served.get("arl", JOB, "-n", namespace)["spec"]
    assert [stage["name"] for stage in spec["stages"]] == ["sft", "rl-0", "rl", "hard", "rl-hard"]
    assert spec["runtimePatches"] == [patch]


def test_crd_explain_prints_descriptions(served: Cluster) -> None:
    """`kubectl explain` prints the docstrings of the models."""
    text = " ".join(served.kubectl("explain", "arl.spec.grpo").split())
    assert "group-relative policy optimisation with Resample-on-Correct" in text
    assert "Maximum global gradient norm. Default: 1.0." in text
    text = " ".join(served.kubectl("explain", "arl.spec.failurePolicy.rules.action").split())
    assert "RestartStage: a new attempt starts from the last checkpoint" in text
