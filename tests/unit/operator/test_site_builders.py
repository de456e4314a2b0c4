"""Parts of pods that a site chooses: keys of its Secrets, values of variables, accelerators by claim."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from rstar2_operator import names
from tests.support.simulated_cluster import manifest
from tests.unit.operator.test_builders import all_objects, templates


def pods(**spec: Any) -> dict[str, dict[str, Any]]:
    """Return role -> pod spec of a job with a GRPO stage."""
    built = templates(all_objects(manifest("g", **spec), "g0"))
    return {template["metadata"]["labels"][names.ROLE_LABEL]: template["spec"] for _, template in built}


def secret_variables(pod: dict[str, Any], secret: str) -> dict[str, str]:
    """Return variable -> key of the variables that come from a Secret."""
    sources = {each["name"]: each.get("valueFrom", {}).get("secretKeyRef") for each in pod["containers"][0]["env"]}
    return {name: ref["key"] for name, ref in sources.items() if ref is not None and ref["name"] == secret}


def test_site_secrets_are_read_by_their_keys() -> None:
    """Token, login, bearer token and certificates come from the named keys, of the pods that need them alone."""
    built = pods(
        secretRefs={"hubToken": {"name": "hub"}, "ca": {"name": "site", "key": "bundle.pem"}},
        tracking={"mlflow": {"secretRef": {"name": "login", "usernameKey": "user"}}},
        mcpServers=[{"name": "my-shop", "url": "http://shop/mcp", "secretRef": {"name": "shop", "key": "token"}}],
        tools=[{"name": "find", "server": "my-shop"}],
    )
    assert secret_variables(built["prepare"], "hub") == {"HF_TOKEN": "HF_TOKEN"}
    assert not secret_variables(built["trainer"], "hub")
    login = {"MLFLOW_TRACKING_USERNAME": "user", "MLFLOW_TRACKING_PASSWORD": "MLFLOW_TRACKING_PASSWORD"}
    assert secret_variables(built["trainer"], "login") == secret_variables(built["report"], "login") == login
    assert secret_variables(built["trainer"], "shop") == {"MY_SHOP_MCP_TOKEN": "token"}
    (bundle,) = (volume["secret"] for volume in built["trainer"]["volumes"] if volume["name"] == "ca")
    assert bundle == {"secretName": "site", "items": [{"key": "bundle.pem", "path": "ca.crt"}]}


def test_variable_of_a_patch_has_its_source() -> None:
    """The API server rejects a variable with both a value and a source."""
    source = {"secretKeyRef": {"name": "bucket", "key": "password"}}
    env = [{"name": "KEY", "valueFrom": source}, {"name": "A", "value": "1"}, {"name": "EMPTY"}]
    built = pods(runtimePatches=[{"manager": "m", "roles": ["rollout"], "env": env}])
    assert [each for each in built["rollout"]["containers"][0]["env"] if each["name"] in ("KEY", "A", "EMPTY")] == env


@pytest.mark.parametrize("stage", ["s", "g", "e"])
def test_accelerators_by_claim_need_no_device_plugin(stage: str) -> None:
    """With claimTemplates pods have a claim and no extended resource; a stage without ranks has neither."""
    accelerator = {"vendor": "AMD", "claimTemplates": {"trainer": "eight", "rollout": "one"}}
    spec = {"accelerator": accelerator, "trainer": {"replicas": 2, "gpusPerReplica": 8}}
    built = dict(templates(all_objects(manifest(stage, **spec), f"{stage}0")))
    for name, template in (("trainer", "eight"), ("rollout", "one")):
        pod = built["demo-rollout" if name == "rollout" else f"demo-{stage}0-1"]["spec"]
        claims = [{"name": "rstar2-accelerator", "resourceClaimTemplateName": template}]
        has_claim = name == "rollout" or stage != "e"
        assert pod.get("resourceClaims") == (claims if has_claim else None)
        resources = pod["containers"][0]["resources"]
        assert resources.get("claims") == ([{"name": "rstar2-accelerator"}] if has_claim else None)
        assert "amd.com/gpu" not in {**resources.get("requests", {}), **resources.get("limits", {})}


def test_stage_without_ranks_requests_by_its_workers() -> None:
    """The pod of a Filter or Evaluate stage runs spec.rollout.workers processes."""
    accelerator = {"vendor": "AMD", "resource": "amd.com/gpu"}
    spec = {"accelerator": accelerator, "trainer": {"gpusPerReplica": 8}, "rollout": {"workers": 6}}
    built = dict(templates(all_objects(manifest("e", **spec), "e0")))
    requests = built["demo-e0-1"]["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "3000m", "memory": "6Gi"}


def test_stage_without_ranks_has_the_resources_of_the_trainer() -> None:
    """The message about its memory limit names spec.trainer.resources, which must have an effect: without devices."""
    accelerator = {"vendor": "AMD", "resource": "amd.com/gpu"}
    amounts = {"requests": {"memory": "8Gi", "example.com/nic": 1}, "limits": {"memory": "64Gi", "example.com/nic": 1}}
    spec = {"accelerator": accelerator, "trainer": {"gpusPerReplica": 8, "resources": amounts}}
    built = dict(templates(all_objects(manifest("e", **spec), "e0")))
    resources = built["demo-e0-1"]["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "500m", "memory": "8Gi"}, "limits": {"memory": "64Gi"}}


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        ({}, "maxmemory 1503238553\n"),
        ({"redis": {"resources": {"limits": {"cpu": 1}}}}, None),
        ({"runtimePatches": [{"manager": "m", "roles": ["redis"], "resources": {"limits": {"memory": "4G"}}}]}, "28"),
    ],
)
def test_redis_refuses_writes_before_its_limit(spec: dict[str, Any], limit: str | None) -> None:
    """Above 70 % of the memory limit Redis refuses writes: killed by the kernel, it would load the same data again."""
    script = pods(**spec)["redis"]["containers"][0]["command"][-1]
    assert "{" not in script and script.endswith("END\n")
    assert ("maxmemory " in script) == (limit is not None) and (limit is None or limit in script)


def test_judge_worker_is_restarted_if_it_hangs() -> None:
    """The file that the worker touches is read by a probe, which passes without the file: of an older image."""
    worker = pods()["judge"]["containers"][1]
    (file,) = (each["value"] for each in worker["env"] if each["name"] == "RSTAR2_ALIVE_FILE")
    command = worker["livenessProbe"]["exec"]["command"]
    path = Path(tempfile.mkdtemp()) / "alive"
    probe = [*command[:2], command[2].replace(file, str(path))]
    codes = [subprocess.run(probe, check=False).returncode]
    for age in (5, 120):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
        codes.append(subprocess.run(probe, check=False).returncode)
    assert codes == [0, 0, 1]
