"""The chart's ValidatingAdmissionPolicy on a real API server: it rejects what only rules.py knew, and nothing else."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from rstar2_train.api.admission import RULES, build_policy
from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.validation import check
from scripts.docs.repository import ROOT
from tests.kube_node.pods import restricted
from tests.support.example_manifests import MANIFESTS
from tests.support.good_manifest import GOOD, changed
from tests.support.kube_apiserver import KubeApiserver
from tests.support.manifests import FAULTS, FINE, LOCAL
from tests.support.waiting import until

JOBS = "/apis/rstar2.dev/v1alpha1/namespaces/default/agenticrljobs"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


def answer(api: KubeApiserver, job: dict[str, Any], method: str = "POST", path: str = f"{JOBS}?dryRun=All") -> str:
    """Return the API server's error message; empty if it accepts the job."""
    body = {**job, "metadata": {key: value for key, value in job["metadata"].items() if key != "namespace"}}
    return api.rejection(method, path, body)


def test_admission_policy_rejects_what_only_python_knew(api: KubeApiserver) -> None:
    """Each fault that the schema accepts is denied with a message; valid jobs and examples are accepted."""
    offline = [(path, value) for path, value, _, expected in FAULTS if expected is None]
    assert len(offline) >= 25
    until(lambda: answer(api, GOOD) == "", "the definition is served")
    invalid = changed(*offline[0])
    stored = copy.deepcopy(invalid) | {"metadata": {"name": "stored"}}
    api.request("POST", JOBS, stored)
    policy, binding = build_policy("rstar2-operator")
    api.request("POST", f"{REGISTRATION}/validatingadmissionpolicies", policy)
    api.request("POST", f"{REGISTRATION}/validatingadmissionpolicybindings", binding)
    until(lambda: "denied request" in answer(api, invalid), "the policy takes effect")
    messages = {f"{path} = {value}": answer(api, changed(path, value)) for path, value in offline}
    accepted = {fault: text for fault, text in messages.items() if "denied request" not in text}
    assert not accepted
    assert all(any(rule.message in text for rule in RULES) for text in messages.values()), messages
    valid = [GOOD, *(changed(path, value) for path, value in (*FINE, *LOCAL)), *map(read_manifest, MANIFESTS)]
    denied = [job for job in valid if "denied request" in answer(api, job)]
    assert denied == [job for job in valid if not fits_cluster(job)] != []
    assert [text for job in valid if fits_cluster(job) and (text := answer(api, job))] == []
    # The operator can add its finalizer to a job that was stored before the policy, and so delete it.
    live = api.request("GET", f"{JOBS}/stored")
    live["metadata"]["finalizers"] = ["rstar2.dev/staged-deletion"]
    assert answer(api, live, "PUT", f"{JOBS}/stored?dryRun=All") == ""
    live["spec"]["seed"] = 0
    live["spec"]["suspend"] = True
    assert "denied request" in answer(api, live, "PUT", f"{JOBS}/stored?dryRun=All")
    status = api.request("GET", f"{REGISTRATION}/validatingadmissionpolicies/rstar2-operator").get("status", {})
    assert not (status.get("typeChecking") or {}).get("expressionWarnings")


def fits_cluster(body: dict[str, Any]) -> bool:
    """Return whether the operator accepts a valid job, which may be one for a single machine."""
    job, _ = check(body)
    assert job is not None
    try:
        resolved_sources(job, "/state")
    except InvalidJob:
        return False
    return True


PODS = [
    pytest.param(yaml.safe_load(text), id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, text in enumerate(
        re.findall(
            r"^apiVersion: v1\nkind: Pod\n.*?(?=^END$|^---$|^```$)", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
    )
]


@pytest.mark.parametrize("pod", PODS)
def test_pod_of_a_page_is_admitted_at_the_restricted_level(
    shared_api: KubeApiserver, namespace: str, pod: dict[str, Any]
) -> None:
    """A namespace for jobs may enforce the level: the pods that a reader creates there obey it too."""
    shared_api.request("PUT", f"/api/v1/namespaces/{namespace}", restricted(namespace))
    assert shared_api.rejection("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod) == ""
