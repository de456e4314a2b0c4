"""The engines of spec.teacher: they exist in the stages whose teacher they serve, and only the trainer reaches them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rstar2_operator import names
from rstar2_operator.builders.objects import build_context
from rstar2_operator.builders.workload import workload
from rstar2_operator.decide import kueue
from rstar2_train.api.validation import check
from tests.support.simulated_cluster import SimulatedCluster, manifest
from tests.unit.operator.test_builders import SETTINGS, all_objects, templates
from tests.unit.operator.test_judge_needs import condition, roles

SOURCE = "pvc://models/big"
NVIDIA = {"vendor": "NVIDIA", "resource": "nvidia.com/gpu"}


def distilled(stages: str = "gg", *, teacher: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a job whose first stage has a teacher; `teacher`: spec.teacher."""
    data = copy.deepcopy(manifest(stages, **spec))
    objective = {"type": "Distillation", "teacher": {"source": SOURCE}}
    first = data["spec"]["stages"][0]
    data["spec"]["stages"][0] = {**first, "grpo": {**first["grpo"], "objective": objective}}
    return data | {"spec": data["spec"] | ({"teacher": teacher} if teacher is not None else {})}


def test_teacher_engines_serve_the_folder_to_the_trainer() -> None:
    """The container, its accelerators, the Service that the trainer asks, and the flows."""
    spec = {"accelerator": NVIDIA, "trainer": {"gpusPerReplica": 1}, "rollout": {"image": "engines:1"}}
    limits = {"limits": {"memory": "80Gi"}}
    bodies = all_objects(distilled(teacher={"replicas": 3, "tensorParallel": 2, "resources": limits}, **spec), "g0")
    made = {(body["kind"], body["metadata"]["name"]): body for body in bodies}
    assert made["Deployment", "demo-teacher"]["spec"]["replicas"] == 3
    assert "clusterIP" not in made["Service", "demo-teacher"]["spec"]  # it divides the requests
    (container,) = dict(templates(bodies))["demo-teacher"]["spec"]["containers"]
    command = container["command"]
    assert command[command.index("--model") + 1] == "/pvc/models/big"
    assert command[command.index("--teacher") + 1] == "g0" and container["image"] == "engines:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", "memory": "80Gi"}
    trainer = dict(templates(bodies))["demo-g0-1"]["spec"]["containers"][0]["command"]
    assert trainer[trainer.index("--teacher") + 1] == "http://demo-teacher:8000"
    policy = made["NetworkPolicy", "demo-teacher"]["spec"]
    (rule,) = policy["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"][names.ROLE_LABEL] == "trainer" and policy["egress"] == []


@pytest.mark.parametrize(("teacher", "stage"), [(None, "g0"), ({}, "g1")])
def test_teacher_engines_are_not_built_without_use(teacher: dict[str, Any] | None, stage: str) -> None:
    """The ranks hold the teacher without spec.teacher; another stage has none."""
    bodies = all_objects(distilled(teacher=teacher), stage)
    assert "demo-teacher" not in dict(templates(bodies))
    assert "--teacher" not in dict(templates(bodies))[f"demo-{stage}-1"]["spec"]["containers"][0]["command"]


def test_teacher_engines_of_a_bucket_copy_the_folder() -> None:
    """As the other engines: a cache, credentials, and the ports of the servers of state and teacher."""
    storage = {"url": "gs://team/runs", "endpointUrl": "http://s3:9000"}
    data = distilled(teacher={}, storage=storage, secretRefs={"storage": {"name": "keys"}, "ca": {"name": "site-ca"}})
    data["spec"]["stages"][0]["grpo"]["objective"]["teacher"]["source"] = "s3://models/big"
    bodies = all_objects(data, "g0")
    (container,) = dict(templates(bodies))["demo-teacher"]["spec"]["containers"]
    assert "--bucket" in container["command"] and {"secretRef": {"name": "keys"}} in container["envFrom"]
    assert {"name": "SSL_CERT_FILE", "value": "/etc/rstar2-ca/ca.crt"} in container["env"]
    ports = {}
    for body in bodies:
        if body["kind"] == "NetworkPolicy":
            ports[body["metadata"]["name"]] = {
                port["port"] for rule in body["spec"]["egress"] for port in rule.get("ports", ())
            }
    assert ports["demo-teacher"] == {443, 9000, 53, 5353} and ports["demo-rollout"] == {443, 53, 5353}


def test_teacher_engines_end_with_their_stage() -> None:
    """RolloutReady waits for them; in the next stage they are gone."""
    cluster = SimulatedCluster(distilled(teacher={"replicas": 2}))
    cluster.finish_preparation()
    cluster.round()
    cluster.progress("g0", 1, 1)
    cluster.reconcile()
    assert "teacher" in roles(cluster)
    ready = condition(cluster, "RolloutReady")
    assert ready["status"] == "True" and "2 of 2 teacher pods ready" in ready["message"]
    assert {"name": "teacher", "ready": 2, "desired": 2} in cluster.job["status"]["roles"]
    cluster.finish_stage("g0")
    cluster.round()
    assert cluster.running() == ["demo-g1-1"] and "teacher" not in roles(cluster)
    assert "teacher" not in condition(cluster, "RolloutReady")["message"]


def test_teacher_engines_are_in_the_quota_request() -> None:
    """Of the stage that has them; other jobs and stages keep their digests."""
    requests = {}
    for teacher in (None, {}, {"replicas": 2}):
        data = distilled(teacher=teacher, queueName="team")
        job, issues = check(data)
        assert job is not None, issues
        context, (first, second) = build_context(job, SETTINGS), job.spec.stages
        bodies = [body for body in all_objects(data, "g0") if body["kind"] != "Job"]
        sets = {each["name"]: each["count"] for each in workload(context, "demo-g0", first, bodies)["spec"]["podSets"]}
        assert sets.get("teacher") == (None if teacher is None else teacher.get("replicas", 1))
        requests[str(teacher)] = kueue.request(job, first), kueue.request(job, second)
    assert len({first for first, _ in requests.values()}) == 3
    assert len({second for _, second in requests.values()}) == 1
