"""A job whose state is in a bucket: no claim, a cache on each pod's disk, credentials where the state is written."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from rstar2_operator import names
from rstar2_operator.builders.objects import build_context
from rstar2_operator.builders.serving import ServingRequest, serving
from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.validation import check, load
from tests.support.simulated_cluster import SimulatedCluster, manifest
from tests.unit.operator.test_builders import SETTINGS, all_objects, templates

TRAINER = {"replicas": 2, "gpusPerReplica": 0}
USERS = {"demo-g0-1", "demo-prepare", "demo-report", "demo-rollout"}


def in_bucket(stages: str = "ss", /, **spec: Any) -> dict[str, Any]:
    """Return a job with its state in a bucket."""
    storage = {"url": "s3://team/runs", "size": "50Gi", "endpointUrl": "https://s3.example.org:9000"}
    secrets = {"storage": {"name": "bucket-keys"}, "hubToken": {"name": "hub"}, "ca": {"name": "site-ca"}}
    return manifest(stages, **{"storage": storage, "trainer": TRAINER, "secretRefs": secrets, **spec})


def test_bucket_pods_have_a_cache_and_no_claim() -> None:
    """The storage of a pod is an emptyDir with the size of the spec; credentials, authorities and option are there."""
    bodies = all_objects(in_bucket("g"), "g0")
    assert "PersistentVolumeClaim" not in {body["kind"] for body in bodies}
    pods = dict(templates(bodies))
    for name in USERS:
        spec = pods.pop(name)["spec"]
        (container,) = spec["containers"]
        assert {"name": "state", "emptyDir": {"sizeLimit": "50Gi"}} in spec["volumes"], name
        assert {"name": "state", "mountPath": names.STORAGE_MOUNT} in container["volumeMounts"], name
        assert {"secretRef": {"name": "bucket-keys"}} in container["envFrom"], name
        assert {"name": "SSL_CERT_FILE", "value": "/etc/rstar2-ca/ca.crt"} in container["env"], name
        assert "--bucket" in container["command"], name
    assert {"demo-executor", "demo-judge"} <= set(pods) and "bucket-keys" not in yaml.safe_dump(pods)


def test_bucket_pods_know_their_namespace() -> None:
    """The job file has the namespace, by which the state of a bucket belongs to one job."""
    files = [
        body["data"]["job.json"] for body in all_objects(in_bucket("g"), "g0") if "job.json" in body.get("data", {})
    ]
    assert [json.loads(file)["metadata"]["namespace"] for file in files] == ["lab"]


def test_engines_of_a_claim_have_no_credentials() -> None:
    """With a claim an engine reads it, and has no flow and no key."""
    secrets = {"storage": {"name": "bucket-keys"}, "ca": {"name": "site-ca"}}
    spec = dict(templates(all_objects(manifest("g", secretRefs=secrets), "g0")))["demo-rollout"]["spec"]
    (container,) = spec["containers"]
    assert {"name": "state", "mountPath": names.STORAGE_MOUNT, "readOnly": True} in container["volumeMounts"]
    assert "--bucket" not in container["command"]
    assert not {"bucket-keys", "site-ca"} & set(re.findall(r"[\w-]+", yaml.safe_dump(spec)))


@pytest.mark.parametrize(
    ("storage", "model", "secrets", "ports"),
    [
        ({"endpointUrl": "https://s3.example.org:9000"}, "hf://team/model", {}, {9000, 53, 5353}),
        ({"endpointUrl": "https://s3.example.org"}, "hf://team/model", {}, {443, 53, 5353}),
        ({"endpointUrl": "http://s3.example.org"}, "hf://team/model", {}, {80, 53, 5353}),
        ({"url": "gs://team/runs"}, "hf://team/model", {}, {443, 53, 5353}),
        ({"url": "gs://team/runs", "endpointUrl": "https://s3.example.org:9000"}, "hf://team/m", {}, {443, 53, 5353}),
        ({"url": "gs://team/runs", "endpointUrl": "http://s3:9000"}, "s3://team/model", {}, {443, 9000, 53, 5353}),
        ({"endpointUrl": "https://s3.example.org:9000"}, "az://team/model", {}, {443, 9000, 53, 5353}),
        ({"endpointUrl": "https://s3.example.org:9000"}, "s3://team/model", {}, {9000, 53, 5353}),
        ({"url": "gs://team/runs"}, "s3://team/model", {}, None),
        ({}, "hf://team/model", {}, None),
        ({"endpointUrl": "https://s3.example.org"}, "hf://team/model", {"proxy": {"name": "proxy"}}, None),
        ({"endpointUrl": "https://s3.example.org"}, "hf://team/model", {"storage": None}, None),
    ],
)
def test_bucket_engines_reach_only_its_port(storage: Any, model: str, secrets: Any, ports: set[int] | None) -> None:
    """The egress of engines is DNS and the ports of the servers of state and model, which are all that they read; any
    port for a proxy, an identity or a secret server."""
    references = {key: value for key, value in {"storage": {"name": "keys"}, **secrets}.items() if value}
    job = in_bucket("g", model={"source": model}, storage={"url": "s3://team/runs", **storage}, secretRefs=references)
    policies = {
        body["metadata"]["name"]: body["spec"] for body in all_objects(job, "g0") if body["kind"] == "NetworkPolicy"
    }
    egress = policies["demo-rollout"]["egress"]
    if ports is None:
        assert egress == [{}]
    else:
        assert {port["port"] for rule in egress for port in rule["ports"]} == ports
    assert policies["demo-executor"]["egress"] == []


def test_bucket_attempts_may_download_new_sources() -> None:
    """An attempt on an empty disk needs the Hub's token, which with a claim only the preparation has."""
    for job, expected in ((in_bucket(), True), (manifest("s", secretRefs={"hubToken": {"name": "hub"}}), False)):
        (container,) = dict(templates(all_objects(job, "s0")))["demo-s0-1"]["spec"]["containers"]
        assert any(variable["name"] == "HF_TOKEN" for variable in container["env"]) is expected
        assert ("--bucket" in container["command"]) is expected


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (in_bucket("sg", rollout={"weightTransport": "Collective"}), "must not be Collective"),
        (in_bucket("s", storage={"url": "file:///runs"}), "only for `rstar2 run`"),
    ],
)
def test_bucket_job_that_shares_files_is_refused(job: dict[str, Any], reason: str) -> None:
    """A job whose pods share files is refused before anything starts, and the message has the remedy."""
    valid, _ = check(job)
    assert valid is not None  # on one machine
    with pytest.raises(InvalidJob, match=reason):
        build_context(valid, SETTINGS)


def running() -> SimulatedCluster:
    """Return the cluster of a job in a bucket whose first stage has started."""
    cluster = SimulatedCluster(in_bucket())
    cluster.finish_preparation()
    cluster.round()
    return cluster


def test_bucket_job_runs_without_a_claim() -> None:
    """From the preparation to the report the job creates no claim."""
    cluster = running()
    for stage in ("s0", "s1"):
        cluster.finish_stage(stage)
        cluster.pods.clear()
        cluster.round()
    assert cluster.created_jobs == ["demo-prepare", "demo-s0-1", "demo-s1-1", "demo-report"]
    assert not [name for kind, name in cluster.children if kind == "PersistentVolumeClaim"]


def condition(cluster: SimulatedCluster, kind: str) -> dict[str, Any]:
    (match,) = [each for each in cluster.job["status"]["conditions"] if each["type"] == kind]
    return match


def test_bucket_outage_is_a_condition() -> None:
    """While uploads fail, StorageReady and Degraded have the server's own words; the attempt continues."""
    cluster = running()
    progress = {"stage": "s0", "attempt": 1, "phase": "Training", "step": 2}
    cluster.patch_progress("progress.json", {**progress, "unreachable": {"storage": "503 SlowDown: busy"}})
    cluster.round()
    for kind, status in (("StorageReady", "False"), ("Degraded", "True")):
        assert (condition(cluster, kind)["status"], condition(cluster, kind)["reason"]) == (
            status,
            "StorageUnavailable",
        )
        assert "Job/demo-s0-1: StorageUnavailable: 503 SlowDown: busy" in condition(cluster, kind)["message"]
    assert condition(cluster, "Stalled")["status"] == "False" and cluster.running() == ["demo-s0-1"]
    cluster.patch_progress("progress.json", progress)
    cluster.round()
    assert condition(cluster, "StorageReady")["status"] == "True"
    assert "StorageUnavailable" not in condition(cluster, "Degraded")["message"]


def test_bucket_model_is_not_served_from_a_claim() -> None:
    """The pods of a served model read a claim, so the model of a bucket is refused with the way to serve it."""
    with pytest.raises(ValueError, match="rstar2 fetch"):
        serving(ServingRequest(load(in_bucket()), "s0", SETTINGS))
