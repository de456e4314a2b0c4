"""The builders: properties of every pod, and all objects of the 64-GPU example.

`python -m tests.unit.operator.test_builders` writes the golden file; review the difference.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rstar2_operator import names
from rstar2_operator.builders.accelerator import AMD_ENV, NVIDIA_ENV
from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.decide.decision import Decision, StageAttempt
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.observed import OWN_CONTAINERS
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import dump_yaml, read_manifest
from rstar2_train.api.validation import check
from tests.support.patch_faults import SITE
from tests.support.simulated_cluster import manifest

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden" / "qwen3-14b.yaml"
AMD = {"vendor": "AMD", "resource": "amd.com/gpu"}
SETTINGS = OperatorSettings(mlflow_uri="http://rstar2-mlflow.rstar2:5000")


def all_objects(data: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    """Return all objects of a job while a stage runs."""
    job, problems = check(data)
    assert job is not None, problems
    decision = Decision(
        stage,
        NO_RESTARTS,
        phase="Running",
        prepare=True,
        serving=True,
        attempt=StageAttempt(stage, 1),
        ending="completed",
        report=True,
    )
    return objects(build_context(job, SETTINGS), decision, has_secret=True)


def example() -> list[dict[str, Any]]:
    data = read_manifest(ROOT / "examples" / "qwen3-14b.yaml")
    data["metadata"] |= {"namespace": "lab", "uid": "uid-1"}
    return all_objects(data, "rl-8k")


def test_own_containers_are_those_of_the_builders() -> None:
    """Every pod of every role has only containers that the operator recognises as its own, in injected pods too."""
    built: dict[str, set[str]] = {}
    for _, template in templates(example()):
        role = template["metadata"]["labels"][names.ROLE_LABEL]
        built.setdefault(role, set()).update(container["name"] for container in template["spec"]["containers"])
    assert built == {role: set(OWN_CONTAINERS[role]) for role in built} and len(built) >= 7


def templates(bodies: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for body in bodies:
        if "template" in body.get("spec", {}):
            yield body["metadata"]["name"], body["spec"]["template"]


def test_builders_64_gpu_example_equals_the_golden_file() -> None:
    """All objects of the 64-GPU example are as reviewed; regenerate the golden file and review the difference."""
    assert yaml.safe_load(GOLDEN.read_text(encoding="utf-8")) == example()


def test_builders_pods_are_restricted_without_token() -> None:
    """Every pod is restricted; only trainer, prepare and report pods have an account token."""
    seen = set()
    for name, template in templates(example()):
        spec = template["spec"]
        role = template["metadata"]["labels"][names.ROLE_LABEL]
        seen.add(role)
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"], name
        assert spec["automountServiceAccountToken"] == (role in ("trainer", "prepare", "report")), name
        assert not any("hostPath" in volume for volume in spec["volumes"]), name
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True, name
    assert seen == {"trainer", "rollout", "judge", "executor", "redis", "prepare", "report"}


def test_builders_executor_has_no_secret_or_claim() -> None:
    """An executor has a RuntimeClass, fixed resources, a public key, and no other secret or claim."""
    spec = dict(templates(example()))["qwen3-14b-executor"]["spec"]
    assert spec["runtimeClassName"] == "gvisor"
    secrets = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    assert [[item["key"] for item in secret["items"]] for secret in secrets] == [["worker-public-key"]]
    assert not any("persistentVolumeClaim" in volume for volume in spec["volumes"])
    assert not any("valueFrom" in variable for variable in spec["containers"][0]["env"])
    limits = spec["containers"][0]["resources"]
    assert limits["limits"] == limits["requests"]


def test_builders_only_ranks_and_engines_request_accelerators() -> None:
    """Trainer and engine pods request accelerators and have their groups; other pods do not."""
    pods = dict(templates(example()))
    requested = {name: template["spec"]["containers"][0].get("resources", {}).get("limits", {}).get("amd.com/gpu")
             for name, template in pods.items()}  # fmt: skip
    assert {name: count for name, count in requested.items() if count} == {
        "qwen3-14b-rl-8k-1": "8",
        "qwen3-14b-rollout": "2",
    }
    assert pods["qwen3-14b-rollout"]["spec"]["securityContext"]["supplementalGroups"]


def test_builders_nvidia_needs_only_another_spec() -> None:
    """With vendor NVIDIA no object mentions AMD."""
    data = manifest("g", accelerator={"vendor": "NVIDIA", "resource": "nvidia.com/gpu"}, trainer={"gpusPerReplica": 4})
    text = yaml.safe_dump(all_objects(data, "g0"))
    assert "nvidia.com/gpu" in text and "amd.com/gpu" not in text and "HIP_" not in text


def test_builders_filter_stage_requests_no_accelerator() -> None:
    """A Filter stage has one pod, without accelerators."""
    data = manifest("gf", accelerator=AMD, trainer={"gpusPerReplica": 8, "replicas": 3})
    job = next(body for body in all_objects(data, "f1") if body["metadata"]["name"] == "demo-f1-1")
    assert job["spec"]["completions"] == 1
    assert "amd.com/gpu" not in yaml.safe_dump(job)


@pytest.mark.parametrize(("transport", "parallel", "expected"), [("Delta", 4, None), ("Collective", 4, "2")])
def test_builders_rdma_devices_follow_the_transport(transport: str, parallel: int, expected: str | None) -> None:
    """Trainer pods request RDMA devices; engines do with Collective, at most as many as a trainer pod."""
    accelerator = {**AMD, "rdma": {"resource": "rdma/hca", "count": 2}}
    rollout = {"weightTransport": transport, "tensorParallel": parallel}
    data = manifest("g", accelerator=accelerator, trainer={"gpusPerReplica": 8}, rollout=rollout)
    pods = dict(templates(all_objects(data, "g0")))
    assert pods["demo-g0-1"]["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] == "2"
    engine = pods["demo-rollout"]["spec"]["containers"][0]["resources"]
    assert engine["requests"].get("rdma/hca") == engine["limits"].get("rdma/hca") == expected


@pytest.mark.parametrize(("transport", "opens"), [("Collective", True), ("Delta", False), ("Folder", False)])
def test_builders_weight_transport_opens_its_flows(transport: str, opens: bool) -> None:
    """Only a collective transport lets engines and trainers connect to each other on any port; DNS stays closed."""
    bodies = all_objects(manifest("g", rollout={"weightTransport": transport}), "g0")
    policies = {body["metadata"]["name"]: body["spec"] for body in bodies if body["kind"] == "NetworkPolicy"}
    rollout, trainer = policies["demo-rollout"], policies["demo-trainer"]
    assert bool(rollout["egress"]) == opens
    assert ("ports" not in rollout["ingress"][0]) == opens
    assert len(trainer["ingress"][0]["from"]) == (2 if opens else 1)
    for rule in (*rollout["egress"], *rollout["ingress"]):
        (peer,) = rule.get("to") or rule.get("from")
        assert peer["podSelector"]["matchLabels"].items() <= trainer["podSelector"]["matchLabels"].items()


def test_builders_shared_claim_is_one_volume() -> None:
    """A claim that is storage and source is one volume with two mounts."""
    data = manifest("g", storage={"claimName": "shared"}, model={"source": "pvc://shared/model"})
    for name, template in templates(all_objects(data, "g0")):
        claims = [volume for volume in template["spec"]["volumes"] if "persistentVolumeClaim" in volume]
        assert len(claims) <= 1, name
        mounts = {mount["mountPath"]: mount for mount in template["spec"]["containers"][0]["volumeMounts"]}
        if claims:
            assert mounts["/pvc/shared"] == {"name": "state", "mountPath": "/pvc/shared", "readOnly": True}, name


def test_builders_job_file_omits_defaults() -> None:
    """The job file has no unset field, so that pods of an earlier version can read it."""
    written = next(body for body in example() if body["metadata"]["name"] == "qwen3-14b-job")["data"]["job.json"]
    assert "pendingDeadlineSeconds" in written and "activeDeadlineSeconds" not in written and "isolation" not in written
    wanted = AgenticRLJob.model_validate_json(written)
    assert wanted.spec.executor.isolation == "GVisor" and wanted.spec.accelerator.vendor == "AMD"


def test_builders_disruption_budget_covers_the_largest_stage() -> None:
    """The budget requires all pods of the largest stage, and selects neither prepare nor report pods."""
    trainer = {"replicas": 3, "gpusPerReplica": 0, "disruptionPolicy": "Refuse"}
    bodies = all_objects(manifest("gf", trainer=trainer), "f1")
    (budget,) = [body["spec"] for body in bodies if body["kind"] == "PodDisruptionBudget"]
    assert budget["minAvailable"] == 3
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow", "a pod that is not ready must not block a drain"
    selected = {
        name
        for name, template in templates(bodies)
        if budget["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    }
    assert selected == {"demo-f1-1"}
    assert not [body for body in all_objects(manifest("gf"), "f1") if body["kind"] == "PodDisruptionBudget"]


def test_builders_platform_chooses_the_user() -> None:
    """With pod_user 0 no pod names a user or group, and every pod stays restricted."""
    job, problems = check(manifest("g"))
    assert job is not None, problems
    decision = Decision("g0", NO_RESTARTS, phase="Running", serving=True, attempt=StageAttempt("g0", 1))
    context = build_context(job, OperatorSettings(pod_user=0))
    for name, template in templates(objects(context, decision, has_secret=True)):
        security = template["spec"]["securityContext"]
        assert security["runAsNonRoot"] and not {"runAsUser", "runAsGroup", "fsGroup"} & set(security), name


@pytest.mark.parametrize(
    ("reference", "volume"),
    [
        ({}, {"secret": {"secretName": "site-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}),
        (
            {"kind": "ConfigMap", "key": "trust.pem"},
            {"configMap": {"name": "site-ca", "items": [{"key": "trust.pem", "path": "ca.crt"}]}},
        ),
    ],
)
def test_builders_ca_replaces_the_trusted_authorities(reference: dict[str, str], volume: dict[str, object]) -> None:
    """With secretRefs.ca, pods that reach the hub and MLflow trust its bundle; engines and executors do not have it."""
    pods = dict(templates(all_objects(manifest("g", secretRefs={"ca": {"name": "site-ca", **reference}}), "g0")))
    for name in ("demo-g0-1", "demo-prepare", "demo-report"):
        assert {"name": "ca", **volume} in pods[name]["spec"]["volumes"], name
        (container,) = pods[name]["spec"]["containers"]
        assert {"name": "SSL_CERT_FILE", "value": "/etc/rstar2-ca/ca.crt"} in container["env"], name
        mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "ca"]
        assert mounts == ["/etc/rstar2-ca"], name
    assert "site-ca" not in yaml.safe_dump([pods["demo-rollout"], pods["demo-executor"]])


def test_builders_storage_secret_is_for_the_preparation() -> None:
    """The credentials of buckets are in the pod that downloads, and in no other."""
    job = manifest("g", secretRefs={"storage": {"name": "bucket-keys"}}, storage={"endpointUrl": "https://s3:9000"})
    pods = dict(templates(all_objects(job, "g0")))
    (container,) = pods.pop("demo-prepare")["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "bucket-keys"}}]
    assert len(pods) > 4 and "bucket-keys" not in yaml.safe_dump(pods)


def test_builders_teacher_token_is_for_preparation_and_trainer() -> None:
    """The token of a teacher's server is in the pods that ask it, and in no other."""
    pods = dict(templates(all_objects(manifest("g", secretRefs={"teacher": {"name": "big"}}), "g0")))
    for name in ("demo-g0-1", "demo-prepare"):
        (container,) = pods.pop(name)["spec"]["containers"]
        reference = {"secretKeyRef": {"name": "big", "key": "token"}}
        assert {"name": "RSTAR2_TEACHER_TOKEN", "valueFrom": reference} in container["env"], name
    assert len(pods) > 3 and "TEACHER" not in yaml.safe_dump(pods)


PATCH = {
    "manager": "site",
    "roles": ["trainer", "rollout", "judge", "redis"],
    "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "volumes": [{"name": "python", "persistentVolumeClaim": {"claimName": "python", "readOnly": True}}],
    "volumeMounts": [{"name": "python", "mountPath": "/opt/python", "readOnly": True}],
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "imagePullSecrets": [{"name": "registry"}],
    "resources": {"limits": {"memory": "64Gi"}},
}


@pytest.mark.parametrize(
    ("roles", "given", "pod", "memory"),
    [
        (["judge"], {"requests": {"memory": "4Gi"}}, "demo-judge", ("4Gi", "4Gi")),
        (["redis"], {"requests": {"memory": "1Gi"}}, "demo-redis", ("1Gi", "2Gi")),
        (["prepare"], {"limits": {"memory": "768Mi"}}, "demo-prepare", ("768Mi", "768Mi")),
    ],
)
def test_patch_resources_override_defaults(roles: list[str], given: dict, pod: str, memory: tuple[str, str]) -> None:
    """A patch that contradicts a default limit or request adapts it."""
    patch = {"manager": "site", "roles": roles, "resources": given}
    pods = dict(templates(all_objects(manifest("g", runtimePatches=[patch]), "g0")))
    resources = pods[pod]["spec"]["containers"][0]["resources"]
    assert (resources["requests"]["memory"], resources["limits"]["memory"]) == memory


def test_patch_site_fields_reach_the_pods() -> None:
    """A patch gives pods a scheduler, gates, networks, variables, claims and an account; selectors stay as they are."""
    patch = {"manager": "site", "roles": ["trainer", "rollout"], **SITE}
    bodies = all_objects(manifest("g", runtimePatches=[patch]), "g0")
    pods = dict(templates(bodies))
    for name in ("demo-g0-1", "demo-rollout"):
        meta, spec = pods[name]["metadata"], pods[name]["spec"]
        assert meta["labels"]["kai.scheduler/queue"] == "research" and names.ROLE_LABEL in meta["labels"]
        assert meta["annotations"].items() >= SITE["annotations"].items()
        assert spec["serviceAccountName"] == "cloud-identity"
        assert spec["schedulerName"] == "kai-scheduler" and spec["schedulingGates"] == SITE["schedulingGates"]
        (spread,) = spec["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"][names.ROLE_LABEL] == meta["labels"][names.ROLE_LABEL]
        assert "kai.scheduler/queue" not in spread["labelSelector"]["matchLabels"]
        (container,) = spec["containers"]
        assert container["envFrom"][-2:] == SITE["envFrom"]
        assert spec["resourceClaims"] == SITE["resourceClaims"] and container["resources"]["claims"] == [
            {"name": "nic"}
        ]
    deployment = next(
        body for body in bodies if body["kind"] == "Deployment" and body["metadata"]["name"] == "demo-rollout"
    )
    assert "kai.scheduler/queue" not in deployment["spec"]["selector"]["matchLabels"]
    binding = next(body for body in bodies if body["kind"] == "RoleBinding")
    assert {"kind": "ServiceAccount", "name": "cloud-identity"} in binding["subjects"]
    assert "cloud-identity" not in yaml.safe_dump(pods["demo-executor"])


def test_patch_never_replaces_values_of_the_builder() -> None:
    """A patch adds entries; identity, security and addresses stay."""
    plain = dict(templates(all_objects(manifest("g"), "g0")))
    patched = dict(templates(all_objects(manifest("g", runtimePatches=[copy.deepcopy(PATCH)]), "g0")))
    spec, before = patched["demo-rollout"]["spec"], plain["demo-rollout"]["spec"]
    engine = spec["containers"][0]
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in engine["env"]
    assert any(mount["mountPath"] == "/opt/python" for mount in engine["volumeMounts"])
    assert spec["nodeSelector"] == {"pool": "gpu"} and spec["imagePullSecrets"] == [{"name": "registry"}]
    assert engine["resources"]["limits"]["memory"] == "64Gi"
    for kept in ("securityContext", "serviceAccountName", "automountServiceAccountToken"):
        assert spec[kept] == before[kept]
    assert engine["securityContext"] == before["containers"][0]["securityContext"]
    assert patched["demo-executor"] == plain["demo-executor"]


@pytest.mark.parametrize(
    "bad",
    [
        {"env": [{"name": "HOME", "value": "/root"}]},
        {"env": [{"name": "RSTAR2_JUDGE_TOKEN", "value": "mine"}]},
        {"volumeMounts": [{"name": "python", "mountPath": "/etc/rstar2"}]},
        {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
        {"labels": {"rstar2.dev/role": "judge"}},
        {"roles": ["executor"]},
        {"resources": {"limits": {"amd.com/gpu": "1"}}},
    ],
)
def test_patch_forbidden_field_is_rejected(bad: dict[str, Any]) -> None:
    """Fields outside the limits of runtimePatches are errors."""
    job, problems = check(manifest("g", runtimePatches=[copy.deepcopy(PATCH) | bad]))
    assert job is None and any("runtimePatches" in problem.field for problem in problems)


def test_patch_overrides_only_tuning_variables() -> None:
    """A patch overrides tuning variables, and no other variable of the builder."""
    example = {"accelerator": AMD, "trainer": {"gpusPerReplica": 8}}
    plain = all_objects(manifest("g", **example), "g0")
    for name, template in templates(plain):
        role = template["metadata"]["labels"][names.ROLE_LABEL]
        for container in template["spec"]["containers"]:
            for variable in container["env"]:
                patch = {"manager": "site", "roles": ["trainer"], "env": [{"name": variable["name"], "value": "33"}]}
                job, problems = check(manifest("g", **example, runtimePatches=[patch]))
                if variable["name"] not in (*AMD_ENV, *NVIDIA_ENV):
                    assert job is None, (name, variable)
                    continue
                assert job is not None, problems
                if role == "trainer":
                    patched = dict(templates(all_objects(manifest("g", **example, runtimePatches=[patch]), "g0")))
                    env = patched[name]["spec"]["containers"][0]["env"]
                    assert [entry["value"] for entry in env if entry["name"] == variable["name"]] == ["33"]


def test_patch_patches_of_one_role_add_up() -> None:
    """Two patches of one role are both applied."""
    more = {
        "manager": "b",
        "roles": ["trainer"],
        "imagePullSecrets": [{"name": "registry"}, {"name": "other"}],
        "nodeSelector": {"a": "1"},
    }
    data = manifest("g", runtimePatches=[copy.deepcopy(PATCH), more | {"env": PATCH["env"]}])
    spec = dict(templates(all_objects(data, "g0")))["demo-g0-1"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "a": "1"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    # Server-side apply rejects a list with a repeated name.
    assert [entry["name"] for entry in spec["containers"][0]["env"]].count("HTTPS_PROXY") == 1


def test_pods_of_jobs_and_executors_opt_out_of_injection() -> None:
    """Service meshes and agents add no container that never ends to a Job, and none to a sandbox; a patch wins."""
    wanted = {"sidecar.istio.io/inject": "true"}
    data = manifest("g", runtimePatches=[{"manager": "mesh", "roles": ["trainer"], "labels": wanted}])
    pods = dict(templates(all_objects(data, "g0")))
    for name in ("demo-executor", "demo-g0-1", "demo-prepare"):
        metadata = pods[name]["metadata"]
        assert metadata["labels"]["sidecar.istio.io/inject"] == ("false" if name == "demo-executor" else "true")
        assert metadata["annotations"]["linkerd.io/inject"] == "disabled"
        assert metadata["annotations"]["vault.hashicorp.com/agent-inject"] == "false"
    assert "annotations" not in pods["demo-judge"]["metadata"]


def test_patch_of_the_trainer_reaches_its_helpers_in_part() -> None:
    """The one pod of the preparation does not wait for the trainer's gang, network or devices."""
    gang = {
        "manager": "gang",
        "roles": ["trainer"],
        "schedulerName": "coscheduling",
        "schedulingGates": [{"name": "example.org/budget"}],
        "labels": {"scheduling.x-k8s.io/pod-group": "demo", "team": "a"},
        "annotations": {"scheduling.k8s.io/group-name": "demo", "k8s.v1.cni.cncf.io/networks": "rdma"},
        "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-nic"}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "env": [{"name": "A", "value": "trainer"}, {"name": "B", "value": "trainer"}],
    }
    own = {"manager": "prepare", "roles": ["prepare"], "env": [{"name": "A", "value": "prepare"}]}
    pods = dict(templates(all_objects(manifest("g", runtimePatches=[gang, own]), "g0")))
    attempt, prepare = pods["demo-g0-1"], pods["demo-prepare"]
    assert attempt["spec"]["schedulerName"] == "coscheduling" and attempt["spec"]["resourceClaims"]
    assert attempt["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "demo"
    assert not {"schedulerName", "schedulingGates", "resourceClaims"} & prepare["spec"].keys()
    assert "scheduling.x-k8s.io/pod-group" not in prepare["metadata"]["labels"]
    assert (
        not {"scheduling.k8s.io/group-name", "k8s.v1.cni.cncf.io/networks"} & prepare["metadata"]["annotations"].keys()
    )
    assert prepare["metadata"]["labels"]["team"] == "a" and prepare["spec"]["tolerations"]
    env = {each["name"]: each.get("value") for each in prepare["spec"]["containers"][0]["env"]}
    assert (env["A"], env["B"]) == ("prepare", "trainer")


def test_patch_executors_accept_only_placement() -> None:
    """Executors get nodeSelector, tolerations, pull secrets and the opt-outs of injectors, and keep their sandbox."""
    patch = {key: PATCH[key] for key in ("manager", "nodeSelector", "tolerations", "imagePullSecrets")}
    opt_out = {"annotations": {"agents.example.org/inject": "no"}}
    data = manifest("g", runtimePatches=[patch | opt_out | {"roles": ["executor"]}])
    template = dict(templates(all_objects(data, "g0")))["demo-executor"]
    spec = template["spec"]
    assert template["metadata"]["annotations"]["agents.example.org/inject"] == "no"
    assert spec["nodeSelector"] == {"pool": "gpu"} and spec["tolerations"]
    assert spec["runtimeClassName"] == "gvisor"


def test_network_policies_allow_only_the_flows() -> None:
    """All traffic is denied except for the flows of the design."""
    policies = {body["metadata"]["name"]: body["spec"] for body in example() if body["kind"] == "NetworkPolicy"}
    closed = policies["qwen3-14b-deny"]
    assert closed["ingress"] == closed["egress"] == [] and closed["policyTypes"] == ["Ingress", "Egress"]
    assert policies["qwen3-14b-executor"]["egress"] == []
    allowed = policies["qwen3-14b-redis"]["ingress"]
    assert [peer["podSelector"]["matchLabels"][names.ROLE_LABEL] for rule in allowed for peer in rule["from"]] == [
        "judge"
    ]


@pytest.mark.parametrize("variable", ["RSTAR2_WORKERS", "RSTAR2_GPU_GROUPS"])
def test_settings_invalid_variable_is_named(variable: str) -> None:
    """An invalid environment variable is an error with its name."""
    with pytest.raises(ValueError, match=variable):
        OperatorSettings.from_env({variable: "many"})


if __name__ == "__main__":
    GOLDEN.write_text(dump_yaml([example()]), encoding="utf-8")


def test_builders_environment_has_no_secret_and_one_client() -> None:
    """The servers of an environment run the user's image without secrets and egress; only the trainer reaches them."""
    spec = {"name": "game", "image": "games:1", "command": ["serve", "--at", "{host}:{port}"], "replicas": 2}
    bodies = all_objects(manifest("g", environments=[spec]), "g0")
    pod = dict(templates(bodies))["demo-environment"]["spec"]
    (container,) = pod["containers"]
    assert (container["image"], container["command"]) == ("games:1", ["serve", "--at", "0.0.0.0:8000"])
    assert container["readinessProbe"]["httpGet"] == {"path": "/schema", "port": "http"}
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp"] and container["env"] == [
        {"name": "HOME", "value": "/tmp"}
    ]
    policies = {body["metadata"]["name"]: body["spec"] for body in bodies if body["kind"] == "NetworkPolicy"}
    policy = policies["demo-environment"]
    assert policy["egress"] == []
    (rule,) = policy["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"][names.ROLE_LABEL] == "trainer"
    trainer = dict(templates(bodies))["demo-g0-1"]["spec"]["containers"][0]["command"]
    assert trainer[trainer.index("--environment") + 1] == "demo-environment:8000"


def test_builders_environment_with_url_has_no_objects() -> None:
    """A running server needs no pod, no Service and no argument of the trainer."""
    bodies = all_objects(manifest("g", environments=[{"name": "game", "url": "http://games:8000"}]), "g0")
    assert not any(body["metadata"]["name"].endswith("-environment") for body in bodies)
    assert "--environment" not in dict(templates(bodies))["demo-g0-1"]["spec"]["containers"][0]["command"]
