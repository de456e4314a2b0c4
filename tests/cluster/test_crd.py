"""The CRD on a real API server: it is taken, its rules refuse what they should in words, kubectl shows what it should.

The faults are those that the offline rules are tested with (tests/support/manifests.py), so that the two cannot drift.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.crd import CRD_FILE
from rstar2_train.api.loader import read_manifest
from tests.kube_node.cluster import Cluster, CommandFailed
from tests.support.example_manifests import MANIFESTS
from tests.support.manifests import CHANGES, FAULTS, FINE, GOOD, changed

JOB = GOOD["metadata"]["name"]


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with the definition in it; as long as these tests last, if it was not there before."""
    name = "crd/agenticrljobs.rstar2.dev"
    before = cluster.run("kubectl", "get", name, check=False).returncode == 0
    cluster.apply(CRD_FILE.read_text())
    cluster.kubectl("wait", name, "--for=condition=Established", "--timeout=60s")
    yield cluster
    if not before:
        cluster.kubectl("delete", name)


def answer(cluster: Cluster, namespace: str, job: dict[str, Any], *arguments: str) -> str:
    """What kubectl says when it creates (or is told to do something else with) a job."""
    command = arguments or ("create", "--dry-run=server")
    done = cluster.run("kubectl", *command, "-n", namespace, "-f", "-", stdin=json.dumps(job), check=False)
    return done.stdout if done.returncode == 0 else f"refused: {done.stderr}"


def test_good_jobs_are_taken(served: Cluster, namespace: str) -> None:
    for job in (GOOD, *(changed(path, value) for path, value in FINE)):
        assert "created" in answer(served, namespace, job), job


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_examples_are_taken(served: Cluster, namespace: str, path: Path) -> None:
    assert "created" in answer(served, namespace, read_manifest(path))


@pytest.mark.parametrize(("path", "value", "_offline", "expected"), FAULTS)
def test_each_fault(
    served: Cluster, namespace: str, path: str, value: object, _offline: str, expected: str | None
) -> None:
    said = answer(served, namespace, changed(path, value))
    if expected is None:
        assert "created" in said  # what only the operator can see: it says so in a condition
    else:
        assert said.startswith("refused:")
        assert expected in said


@pytest.mark.parametrize(("path", "first", "then", "expected"), CHANGES)
def test_what_cannot_change(
    served: Cluster, namespace: str, path: str, first: object, then: object, expected: str | None
) -> None:
    assert "created" in answer(served, namespace, changed(path, first), "create")
    said = answer(served, namespace, changed(path, then), "replace")
    assert ("replaced" in said) if expected is None else (said.startswith("refused:") and expected in said)


def report(cluster: Cluster, namespace: str, **fields: object) -> None:
    """Write a status."""
    body = json.dumps({"status": fields})
    cluster.kubectl("patch", f"arl/{JOB}", "-n", namespace, "--subresource=status", "--type=merge", "-p", body)


def test_columns_scale_and_categories(served: Cluster, namespace: str) -> None:
    answer(served, namespace, GOOD, "create")
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
        *("TRAINER", "ROLLOUT", "JUDGE", "HEALTH", "AGE"),
    ]
    assert rows[1][:7] == [JOB, "Running", "rl", "2", "0.863", "40", "1"]
    assert served.kubectl("get", "arl", "-n", namespace).splitlines()[0].split() == [
        *("NAME", "PHASE", "STAGE", "STEP", "REWARD", "PROGRESS", "RESTARTS", "AGE"),
    ]
    assert f"agenticrljob.rstar2.dev/{JOB}" in served.kubectl("get", "ml", "-n", namespace, "-o", "name")
    assert f"agenticrljob.rstar2.dev/{JOB}" in served.kubectl("get", "all", "-n", namespace, "-o", "name")
    served.kubectl("scale", f"arl/{JOB}", "--replicas=3", "-n", namespace)
    assert served.get("arl", JOB, "-n", namespace)["spec"]["rollout"]["replicas"] == 3


def test_a_status_that_is_none_is_refused(served: Cluster, namespace: str) -> None:
    answer(served, namespace, GOOD, "create")
    for wrong in ({"progressPercentage": 101}, {"phase": "two words"}, {"conditions": [{"type": "A"}]}):
        with pytest.raises(CommandFailed, match="is invalid"):
            report(served, namespace, **wrong)


def test_metrics_may_be_left_out_but_not_emptied(served: Cluster, namespace: str) -> None:
    """Why the operator leaves them out where an attempt has none: server-side apply makes null of an emptied map."""
    answer(served, namespace, GOOD, "create")
    row = {"name": "rl", "type": "GRPO", "phase": "Running", "attempts": 1}
    job = {key: GOOD[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": JOB}}
    apply = ("apply", "--server-side", "--subresource=status", "--field-manager=test")
    for metrics, taken in (({"metrics": {"loss": "0.5"}}, True), ({"metrics": {}}, False), ({}, True)):
        said = answer(served, namespace, {**job, "status": {"phase": "Running", "stages": [row | metrics]}}, *apply)
        assert ("refused" not in said) == taken, said


def test_what_is_left_out_is_filled_in(served: Cluster, namespace: str) -> None:
    answer(served, namespace, GOOD, "create")
    spec = served.get("arl", JOB, "-n", namespace)["spec"]
    assert spec["rollout"]["replicas"] == 1
    assert spec["judge"]["limits"]["wallSeconds"] == 4
    wanted = copy.deepcopy(GOOD["spec"]["grpo"])
    assert spec["grpo"] == wanted  # a stage's settings lie over these: what is not set must stay so


def test_it_explains_itself(served: Cluster) -> None:
    text = " ".join(served.kubectl("explain", "arl.spec.grpo").split())
    assert "group-relative policy optimisation with Resample-on-Correct" in text
    assert "Upper clip range of the probability ratio, 1 + clipHigh (eq. 6). Default: 0.28." in text
    assert "RestartStage: from its last checkpoint" in served.kubectl("explain", "arl.spec.failurePolicy.rules.action")
