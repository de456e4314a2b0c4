"""The settings of a site for the pods of all jobs: where they arrive, and that a job's own values win."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from rstar2_operator.builders.objects import build_context, objects
from rstar2_operator.decide.decision import Decision, StageAttempt
from rstar2_operator.decide.restarts import NO_RESTARTS
from rstar2_operator.settings import OperatorSettings
from rstar2_train.api.roles import Role
from rstar2_train.api.validation import check
from tests.support.simulated_cluster import manifest

SITE = {
    "imagePullSecrets": [{"name": "registry"}],
    "labels": {"team": "site", "cost-centre": "7a"},
    "nodeSelector": {"pool": "train"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}


def pods(settings: dict[str, str], **spec: Any) -> dict[str, dict[str, Any]]:
    """Return the pod templates of a GRPO stage and of prepare, by the name of their owner."""
    job, problems = check(manifest("g", **spec))
    assert job is not None, problems
    context = build_context(job, OperatorSettings.from_env(settings))
    decision = Decision(
        "g0",
        NO_RESTARTS,
        phase="Running",
        prepare=True,
        serving=True,
        attempt=StageAttempt("g0", 1),
    )
    bodies = objects(context, decision, has_secret=True)
    return {body["metadata"]["name"]: body["spec"]["template"] for body in bodies if "template" in body.get("spec", {})}


def test_site_patch_reaches_every_pod_of_a_job() -> None:
    """Pods of all roles, also executors and preparation, have the site's secrets, labels, nodes and tolerations."""
    templates = pods({"RSTAR2_JOB_PODS": json.dumps(SITE)})
    assert len(templates) == 6
    for name, template in templates.items():
        assert template["spec"]["imagePullSecrets"] == SITE["imagePullSecrets"], name
        assert template["spec"]["nodeSelector"] == SITE["nodeSelector"], name
        assert template["spec"]["tolerations"] == SITE["tolerations"], name
        assert template["metadata"]["labels"]["cost-centre"] == "7a", name


def test_site_patch_yields_to_the_patch_of_a_job() -> None:
    """A label and a node label of a job win; its pull secrets and tolerations come first."""
    own = {
        "manager": "me",
        "roles": ["trainer"],
        "labels": {"team": "mine"},
        "nodeSelector": {"pool": "large"},
        "imagePullSecrets": [{"name": "own"}, {"name": "registry"}],
    }
    trainer = pods({"RSTAR2_JOB_PODS": json.dumps(SITE)}, runtimePatches=[own])["demo-g0-1"]
    assert trainer["metadata"]["labels"]["team"] == "mine"
    assert trainer["metadata"]["labels"]["cost-centre"] == "7a"
    assert trainer["spec"]["nodeSelector"] == {"pool": "large"}
    assert [each["name"] for each in trainer["spec"]["imagePullSecrets"]] == ["own", "registry"]


def test_site_registry_prefix_yields_to_the_jobs_prefix() -> None:
    """The site's prefix precedes its images, unless the job has a prefix or an image of its own."""
    settings = {"RSTAR2_REGISTRY_PREFIX": "mirror.example.com/hub", "RSTAR2_JUDGE_IMAGE": "judge:1"}

    def image(owner: str, **spec: Any) -> str:
        return str(pods(settings, **spec)[owner]["spec"]["containers"][0]["image"])

    assert image("demo-judge") == "mirror.example.com/hub/judge:1"
    assert image("demo-judge", registryPrefix="other.example.com") == "other.example.com/judge:1"
    assert image("demo-judge", judge={"image": "own:2"}) == "own:2"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{", "Expecting property name"),
        ("[]", "must be a JSON object"),
        ('{"env": [{"name": "A", "value": "1"}]}', "env: a site cannot set this for all jobs"),
        ('{"labels": {"rstar2.dev/role": "x"}}', "is reserved for the operator"),
        ('{"annotations": {"dev.gvisor.internal.nosandbox": "true"}}', "sandbox"),
    ],
)
def test_site_patch_that_is_wrong_names_the_variable(value: str, problem: str) -> None:
    """The operator does not start with a patch that it would have to ignore in part."""
    with pytest.raises(ValueError, match=f"RSTAR2_JOB_PODS.*{problem}"):
        OperatorSettings.from_env({"RSTAR2_JOB_PODS": value})


def test_roles_of_the_site_patch_fit_its_limit() -> None:
    """The patch has all roles; a further role must not exceed the limit of the field."""
    site = OperatorSettings.from_env({"RSTAR2_JOB_PODS": "{}"}).job_pods
    assert site is not None
    assert set(site.roles) == set(get_args(Role))
