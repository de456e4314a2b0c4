"""The pods of an agent's programs: their isolation, their token, and the flows to the trainer's endpoint."""

from __future__ import annotations

import base64
from typing import Any

from rstar2_operator import names
from rstar2_operator.builders.config import secret
from rstar2_operator.builders.objects import build_context
from rstar2_train.api.validation import check
from rstar2_train.utils import agent_runner
from tests.support.simulated_cluster import manifest
from tests.unit.operator.test_builders import SETTINGS, all_objects, templates

AGENT = {"command": ["python", "/app/agent.py"], "image": "agents:1", "replicas": 3, "maxConcurrentEpisodes": 4}


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_agent_pods_have_one_token_and_no_volume_of_the_job() -> None:
    """The user's image runs the mounted runner with the token of the pods; it has no storage and no other secret."""
    bodies = all_objects(manifest("g", agent=AGENT), "g0")
    own = {body["kind"]: body for body in bodies if body["metadata"]["name"] == "demo-agent"}
    deployment = own["Deployment"]
    assert deployment["spec"]["replicas"] == 3
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "agents:1"
    program = ["python", "/app/agent.py"]
    assert container["command"] == [
        "python3", "/etc/rstar2/agent/agent_runner.py", "demo-trainer:8090", "4", *program
    ]  # fmt: skip
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "runner"]
    assert pod["automountServiceAccountToken"] is False
    secrets = {name: value["secretKeyRef"]["key"] for name, value in variables(container).items() if name != "HOME"}
    assert secrets == {"RSTAR2_AGENT_TOKEN": "agent-token"}
    assert own["ConfigMap"]["data"] == {"agent_runner.py": agent_runner.source()}


def test_agent_flows_are_the_endpoint_and_dns() -> None:
    """Agents reach DNS and the endpoint of the trainer, and no other address; no pod reaches them."""
    bodies = all_objects(manifest("g", agent=AGENT), "g0")
    policies = {body["metadata"]["name"]: body["spec"] for body in bodies if body["kind"] == "NetworkPolicy"}
    policy = policies["demo-agent"]
    assert policy["ingress"] == []
    dns, endpoint = policy["egress"]
    assert {rule["port"] for rule in dns["ports"]} == {53, 5353} and "to" not in dns
    assert endpoint["to"][0]["podSelector"]["matchLabels"][names.ROLE_LABEL] == "trainer"
    assert [rule["port"] for rule in endpoint["ports"]] == [8090]
    (rule,) = [rule for rule in policies["demo-trainer"]["ingress"] if rule.get("ports")]
    assert rule["from"][0]["podSelector"]["matchLabels"][names.ROLE_LABEL] == "agent"
    assert [port["port"] for port in rule["ports"]] == [8090]


def test_agent_trainer_listens_only_in_stages_that_sample() -> None:
    """The trainer of a stage that samples has port and token of the endpoint; an SFT stage has neither."""
    for stage, listens in (("g0", True), ("s1", False)):
        pods = dict(templates(all_objects(manifest("gs", agent=AGENT), stage)))
        (container,) = pods[f"demo-{stage}-1"]["spec"]["containers"]
        assert ("--agent-port" in container["command"]) is listens
        assert ("RSTAR2_AGENT_TOKEN" in variables(container)) is listens
        assert {"name": "agent", "containerPort": 8090} in container["ports"] or not listens


def test_agent_secret_has_its_token_only_with_an_agent() -> None:
    """The Secret of a job with an agent has a token of its own for the pods."""
    keys = []
    for settings in ({"agent": AGENT}, {}):
        job, problems = check(manifest("g", **settings))
        assert job is not None, problems
        data = secret(build_context(job, SETTINGS))["data"]
        keys.append("agent-token" in data)
        assert len({base64.b64decode(value) for value in data.values()}) == len(data)
    assert keys == [True, False]
