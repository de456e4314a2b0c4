"""The builders: what every pod must be, whatever the job; and the 64-GPU example, object by object.

`python -m tests.unit.operator.test_builders` writes the golden file again, after a look at what has changed.
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
from rstar2_operator.decide.plan import Plan, StageAttempt
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import dump_yaml, read_manifest
from rstar2_train.api.validation import check
from tests.support.simulated_cluster import manifest

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parent / "golden" / "qwen3-14b.yaml"
AMD = {"vendor": "AMD", "resource": "amd.com/gpu"}
SETTINGS = OperatorSettings(mlflow_uri="http://rstar2-mlflow.rstar2:5000")


def everything(data: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    """All objects of a job while a stage runs."""
    job, problems = check(data)
    assert job is not None, problems
    plan = Plan(
        phase="Running", stage=stage, prepare=True, serving=True, attempt=StageAttempt(stage, 1), report="completed"
    )
    return objects(build_context(job, SETTINGS), plan, has_secret=True)


def example() -> list[dict[str, Any]]:
    data = read_manifest(ROOT / "examples" / "qwen3-14b.yaml")
    data["metadata"] |= {"namespace": "lab", "uid": "uid-1"}
    return everything(data, "rl-8k")


def templates(made: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for body in made:
        if "template" in body.get("spec", {}):
            yield body["metadata"]["name"], body["spec"]["template"]


def test_the_64_gpu_example_is_as_looked_at() -> None:
    assert yaml.safe_load(GOLDEN.read_text(encoding="utf-8")) == example(), "write it again, and look at the difference"


def test_every_pod_is_restricted_and_has_no_token_but_the_trainers() -> None:
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


def test_an_executor_holds_nothing_worth_taking() -> None:
    spec = dict(templates(example()))["qwen3-14b-executor"]["spec"]
    assert spec["runtimeClassName"] == "gvisor"
    secrets = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    assert [[item["key"] for item in one["items"]] for one in secrets] == [["worker-public-key"]]
    assert not any("persistentVolumeClaim" in volume for volume in spec["volumes"])
    assert not any("valueFrom" in variable for variable in spec["containers"][0]["env"])
    limits = spec["containers"][0]["resources"]
    assert limits["limits"] == limits["requests"]


def test_accelerators_are_asked_for_where_they_are_used() -> None:
    pods = dict(templates(example()))
    asked = {name: template["spec"]["containers"][0].get("resources", {}).get("limits", {}).get("amd.com/gpu")
             for name, template in pods.items()}  # fmt: skip
    assert {name: count for name, count in asked.items() if count} == {
        "qwen3-14b-rl-8k-1": "8",
        "qwen3-14b-rollout": "2",
    }
    assert pods["qwen3-14b-rollout"]["spec"]["securityContext"]["supplementalGroups"]


def test_nvidia_is_a_matter_of_data() -> None:
    data = manifest("g", accelerator={"vendor": "NVIDIA", "resource": "nvidia.com/gpu"}, trainer={"gpusPerReplica": 4})
    text = yaml.safe_dump(everything(data, "g0"))
    assert "nvidia.com/gpu" in text and "amd.com/gpu" not in text and "HIP_" not in text


def test_a_filter_waits_for_no_trainer() -> None:
    data = manifest("gf", accelerator=AMD, trainer={"gpusPerReplica": 8, "replicas": 3})
    job = next(body for body in everything(data, "f1") if body["metadata"]["name"] == "demo-f1-1")
    assert job["spec"]["completions"] == 1
    assert "amd.com/gpu" not in yaml.safe_dump(job)


def test_rdma_devices_are_for_the_pods_that_learn() -> None:
    accelerator = {**AMD, "rdma": {"resource": "rdma/hca"}}
    pods = dict(templates(everything(manifest("g", accelerator=accelerator, trainer={"gpusPerReplica": 8}), "g0")))
    assert pods["demo-g0-1"]["spec"]["containers"][0]["resources"]["limits"]["rdma/hca"] == "1"
    assert "rdma/hca" not in yaml.safe_dump(pods["demo-rollout"])


def test_a_claim_that_holds_data_and_state_is_one_volume() -> None:
    data = manifest("g", storage={"claimName": "shared"}, model={"source": "pvc://shared/model"})
    for name, template in templates(everything(data, "g0")):
        claims = [volume for volume in template["spec"]["volumes"] if "persistentVolumeClaim" in volume]
        assert len(claims) <= 1, name
        mounts = {mount["mountPath"]: mount for mount in template["spec"]["containers"][0]["volumeMounts"]}
        if claims:
            assert mounts["/pvc/shared"] == {"name": "state", "mountPath": "/pvc/shared", "readOnly": True}, name


def test_pods_of_an_earlier_version_can_read_the_job_file() -> None:
    """A field that came later stands in it only where the job asks for it."""
    written = next(body for body in example() if body["metadata"]["name"] == "qwen3-14b-job")["data"]["job.json"]
    assert "pendingDeadlineSeconds" in written and "activeDeadlineSeconds" not in written and "isolation" not in written
    wanted = AgenticRLJob.model_validate_json(written)
    assert wanted.spec.executor.isolation == "GVisor" and wanted.spec.accelerator.vendor == "AMD"


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
        (["trainer"], {"limits": {"memory": "768Mi"}}, "demo-prepare", ("768Mi", "768Mi")),
    ],
)
def test_a_default_gives_way_to_what_a_patch_asks_for(
    roles: list[str], given: dict, pod: str, memory: tuple[str, str]
) -> None:
    patch = {"manager": "site", "roles": roles, "resources": given}
    made = dict(templates(everything(manifest("g", runtimePatches=[patch]), "g0")))
    found = made[pod]["spec"]["containers"][0]["resources"]
    assert (found["requests"]["memory"], found["limits"]["memory"]) == memory


def test_a_patch_adds_and_never_takes_over() -> None:
    plain = dict(templates(everything(manifest("g"), "g0")))
    patched = dict(templates(everything(manifest("g", runtimePatches=[copy.deepcopy(PATCH)]), "g0")))
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
def test_a_patch_that_reaches_for_more_is_refused(bad: dict[str, Any]) -> None:
    job, problems = check(manifest("g", runtimePatches=[copy.deepcopy(PATCH) | bad]))
    assert job is None and any("runtimePatches" in problem.field for problem in problems)


def test_a_patch_tunes_libraries_and_nothing_else_that_is_set() -> None:
    example = {"accelerator": AMD, "trainer": {"gpusPerReplica": 8}}
    plain = everything(manifest("g", **example), "g0")
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
                    patched = dict(templates(everything(manifest("g", **example, runtimePatches=[patch]), "g0")))
                    env = patched[name]["spec"]["containers"][0]["env"]
                    assert [one["value"] for one in env if one["name"] == variable["name"]] == ["33"]


def test_patches_of_one_role_add_up() -> None:
    more = {
        "manager": "b",
        "roles": ["trainer"],
        "imagePullSecrets": [{"name": "registry"}, {"name": "other"}],
        "nodeSelector": {"a": "1"},
    }
    data = manifest("g", runtimePatches=[copy.deepcopy(PATCH), more | {"env": PATCH["env"]}])
    spec = dict(templates(everything(data, "g0")))["demo-g0-1"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "a": "1"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    # Server-side apply refuses a list that says one name twice.
    assert [one["name"] for one in spec["containers"][0]["env"]].count("HTTPS_PROXY") == 1


def test_executors_take_placement_only() -> None:
    patch = {key: PATCH[key] for key in ("manager", "nodeSelector", "tolerations", "imagePullSecrets")}
    data = manifest("g", runtimePatches=[patch | {"roles": ["executor"]}])
    spec = dict(templates(everything(data, "g0")))["demo-executor"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"} and spec["tolerations"]
    assert spec["runtimeClassName"] == "gvisor"


def test_every_role_is_closed_to_all_but_its_flows() -> None:
    policies = {body["metadata"]["name"]: body["spec"] for body in example() if body["kind"] == "NetworkPolicy"}
    closed = policies["qwen3-14b-deny"]
    assert closed["ingress"] == closed["egress"] == [] and closed["policyTypes"] == ["Ingress", "Egress"]
    assert policies["qwen3-14b-executor"]["egress"] == []
    allowed = policies["qwen3-14b-redis"]["ingress"]
    assert [one["podSelector"]["matchLabels"][names.ROLE_LABEL] for rule in allowed for one in rule["from"]] == [
        "judge"
    ]


@pytest.mark.parametrize("variable", ["RSTAR2_WORKERS", "RSTAR2_GPU_GROUPS"])
def test_a_wrong_setting_is_named(variable: str) -> None:
    with pytest.raises(ValueError, match=variable):
        OperatorSettings.from_env({variable: "many"})


if __name__ == "__main__":
    GOLDEN.write_text(dump_yaml([example()]), encoding="utf-8")
