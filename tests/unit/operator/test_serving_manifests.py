"""The objects that serve a job's model: the example, the properties of every object, and the command."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from rstar2_operator import names
from rstar2_operator.builders.serving import ServingRequest, last_trained, serving, serving_secret
from rstar2_operator.serving_manifests import main, render
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.validation import load
from rstar2_train.cli.main import parser
from tests.support.simulated_cluster import manifest

ROOT = Path(__file__).parents[3]
EXAMPLE = Path("examples/qwen3-14b.yaml")
FILE = Path("examples/serve.yaml")


def serving_request(data: dict[str, Any] | None = None) -> ServingRequest:
    job = load(data or read_manifest(ROOT / EXAMPLE))
    return ServingRequest(job, last_trained(job), OperatorSettings())


def pods(made: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Role -> pod spec."""
    templates = [body["spec"]["template"] for body in made if "template" in body.get("spec", {})]
    return {template["metadata"]["labels"][names.ROLE_LABEL]: template["spec"] for template in templates}


def test_serving_example_is_current_without_secret_data() -> None:
    """examples/serve.yaml equals the output, and its Secret is empty."""
    text = (ROOT / FILE).read_text(encoding="utf-8")
    assert text == render(serving_request(), file=EXAMPLE, out=FILE), f"{FILE}: run `make crds`"
    (secret,) = [body for body in yaml.safe_load_all(text) if body["kind"] == "Secret"]
    assert not {"data", "stringData"} & set(secret)


def test_serving_pods_are_restricted_without_token() -> None:
    """Every pod is restricted and has no account token."""
    made = pods(serving(serving_request()))
    assert set(made) == {"endpoint", "rollout", "judge", "executor", "redis"}
    for role, spec in made.items():
        assert spec["securityContext"]["runAsNonRoot"] and spec["automountServiceAccountToken"] is False, role
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}, role
            assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True, role
    assert made["executor"]["runtimeClassName"] == "gvisor"


def test_serving_engine_has_no_rdma_device() -> None:
    """The engine of a served model receives no weights, so it has no RDMA device, also with Collective."""
    data = read_manifest(ROOT / EXAMPLE)
    data["spec"]["rollout"]["weightTransport"] = "Collective"
    limits = pods(serving(serving_request(data)))["rollout"]["containers"][0]["resources"]["limits"]
    assert "amd.com/gpu" in limits and "amd.com/nic" not in limits


def test_serving_only_engine_and_endpoint_mount_the_claim() -> None:
    """Engine and endpoint mount the job's claim read-only; no other pod has a claim."""
    made = serving(serving_request())
    assert not any(body["kind"] == "PersistentVolumeClaim" for body in made)
    for role, spec in pods(made).items():
        claims = [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in spec["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        assert claims == (["qwen3-14b-state"] if role in ("rollout", "endpoint") else []), role
        for container in spec["containers"]:
            mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "state"]
            assert all(mount["readOnly"] for mount in mounts) and len(mounts) == len(claims), role


def test_serving_chat_template_claim_is_mounted() -> None:
    """The claim of a chat template is mounted in engine and endpoint."""
    data = read_manifest(ROOT / EXAMPLE)
    data["spec"]["model"]["chatTemplate"] = "pvc://texts/template.jinja"
    made = serving(serving_request(data))
    for role in ("rollout", "endpoint"):
        assert "/pvc/texts" in [mount["mountPath"] for mount in pods(made)[role]["containers"][0]["volumeMounts"]]
    assert engine_job(made).spec.rollout.engine_args["chat-template"] == "/pvc/texts/template.jinja"


def engine_job(made: list[dict[str, Any]]) -> AgenticRLJob:
    (config,) = [body for body in made if body["kind"] == "ConfigMap"]
    return AgenticRLJob.model_validate_json(config["data"]["job.json"])


def test_serving_engine_and_endpoint_use_the_same_model() -> None:
    """Engine and endpoint have the same model path, and the endpoint the URLs of the Services."""
    made = serving(serving_request())
    engine, endpoint = (pods(made)[role]["containers"][0]["command"] for role in ("rollout", "endpoint"))
    model = "/state/qwen3-14b/stages/rl-hard/model"
    assert engine[engine.index("--model") + 1] == model
    given = parser().parse_args(endpoint[3:])
    assert (given.command, given.model, given.host) == ("serve", model, "::")
    services = {
        body["metadata"]["name"]: body["spec"]["ports"][0]["port"] for body in made if body["kind"] == "Service"
    }
    for url, name in ((given.endpoint, "serve-qwen3-14b-rollout"), (given.judge, "serve-qwen3-14b-judge")):
        assert url == f"http://{name}:{services[name]}"
    assert engine_job(made).spec.rollout.engine_args == {"enable-auto-tool-choice": True, "tool-call-parser": "hermes"}


def test_serving_secret_has_every_key_of_the_pods() -> None:
    """The Secret has exactly the keys that pods reference, with new values for every call."""
    request = serving_request()
    secret = serving_secret(request)
    keys = set()
    for spec in pods(serving(request)).values():
        for container in spec["containers"]:
            refs = [variable["valueFrom"]["secretKeyRef"] for variable in container["env"] if "valueFrom" in variable]
            assert {ref["name"] for ref in refs} <= {secret["metadata"]["name"]}
            keys |= {ref["key"] for ref in refs}
        keys |= {item["key"] for volume in spec["volumes"] if "secret" in volume for item in volume["secret"]["items"]}
    assert keys == set(secret["data"])
    assert all(len(base64.b64decode(value)) >= 32 for value in secret["data"].values())
    assert secret["data"] != serving_secret(request)["data"]


def test_serving_network_allows_only_the_flows() -> None:
    """Only endpoint to engine and judge, and judge to Redis and executors, are allowed."""
    policies = {
        body["metadata"]["name"]: body["spec"] for body in serving(serving_request()) if body["kind"] == "NetworkPolicy"
    }
    out, into = set(), set()
    for name, spec in policies.items():
        own = name.removeprefix("serve-qwen3-14b-")
        out |= {(own, role(peer), port(rule)) for rule in spec["egress"] for peer in rule.get("to", ())}
        into |= {(role(peer), own, port(rule)) for rule in spec["ingress"] for peer in rule["from"]}
    assert (
        out
        == into
        == {
            ("endpoint", "rollout", names.ENGINE_PORT),
            ("endpoint", "judge", names.JUDGE_PORT),
            ("judge", "redis", names.REDIS_PORT),
            ("judge", "executor", names.EXECUTOR_PORT),
        }
    )
    with_dns = {name for name, spec in policies.items() if any("to" not in rule for rule in spec["egress"])}
    assert with_dns == {"serve-qwen3-14b-endpoint", "serve-qwen3-14b-judge"}
    closed = policies["serve-qwen3-14b-deny"]
    assert closed["ingress"] == closed["egress"] == [] and closed["policyTypes"] == ["Ingress", "Egress"]


def role(peer: dict[str, Any]) -> str:
    return peer["podSelector"]["matchLabels"][names.ROLE_LABEL]


def port(rule: dict[str, Any]) -> int:
    (entry,) = rule["ports"]
    return entry["port"]


def test_serving_objects_are_ignored_by_the_operator() -> None:
    """No object has the operator's label, or a name that the operator would match with the job."""
    for body in serving(serving_request()):
        assert body["metadata"]["labels"][names.MANAGED_BY] != names.FIELD_MANAGER
        assert not body["metadata"]["name"].startswith("qwen3-14b-")


def test_serving_longest_job_name_fits() -> None:
    """Names of all objects fit for a job name of maximum length."""
    data = manifest("sg")
    data["metadata"]["name"] = "n" * 40
    made = serving(serving_request(data))
    (file,) = [body for body in made if body["kind"] == "ConfigMap"]
    assert AgenticRLJob.model_validate_json(file["data"]["job.json"]).metadata.name == "n" * 40
    assert max(len(body["metadata"]["name"]) for body in made) <= 63


def test_serving_engine_patches_apply_to_the_endpoint() -> None:
    """Patches of role rollout apply to engine and endpoint."""
    patch = {"manager": "site", "roles": ["rollout"], "imagePullSecrets": [{"name": "registry"}]}
    made = pods(serving(serving_request(manifest("sg", runtimePatches=[patch]))))
    assert [role for role, spec in made.items() if "imagePullSecrets" in spec] == ["rollout", "endpoint"]


def test_serving_command_options_and_errors(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command writes the requested stage, executors and namespace, and reports stages without a model."""
    data = manifest("sgf")
    data["metadata"]["namespace"] = "lab"
    file, out = tmp_path / "job.yaml", tmp_path / "out.yaml"
    file.write_text(yaml.safe_dump(data))
    assert main([str(file), "--stage", "s0", "--executors", "7", "--out", str(out)]) == 0
    text = out.read_text()
    made = list(yaml.safe_load_all(text))
    assert {body["metadata"]["namespace"] for body in made} == {"lab"}
    assert "kubectl -n lab apply --server-side -f" in text
    (executors,) = [
        body for body in made if body["metadata"]["name"] == "serve-demo-executor" and body["kind"] == "Deployment"
    ]
    assert executors["spec"]["replicas"] == 7
    assert "/state/demo/stages/s0/model" in pods(made)["rollout"]["containers"][0]["command"]
    assert main([str(file), "--stage", "f2"]) == 1
    assert "stage 'f2' of demo trains no model; training stages: s0, g1" in capsys.readouterr().err
    file.write_text(yaml.safe_dump(manifest("e")))
    assert main([str(file)]) == 1
    assert "there is no model to serve" in capsys.readouterr().err
