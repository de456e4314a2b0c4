"""The chart on a real API server: install, upgrade, rollback, uninstall; and what its operator's account may do.

Whether the operator's pods do their work is the end-to-end test's question; here no pod has to run.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube_node.cluster import Cluster, CommandFailed
from tests.kube_node.namespaces import wait_for

CHART = str(Path(__file__).parents[2] / "helm" / "rstar2")
DEFINITION = "crd/agenticrljobs.rstar2.dev"
SWITCHES = ("mlflow.enabled=true", "runtimeClass.create=true", "monitoring.dashboard.enabled=true")
MONITORING = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}


def helm(cluster: Cluster, verb: str, release: str, namespace: str, *arguments: str) -> str:
    return cluster.run("helm", verb, release, *arguments, "--namespace", namespace).stdout


def sets(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


@pytest.fixture
def release(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A name for a release; what it leaves in the cluster on purpose is removed, unless it was there before."""
    before = cluster.run("kubectl", "get", DEFINITION, check=False).returncode == 0
    yield namespace.replace("t-", "r-")
    cluster.run("helm", "uninstall", namespace.replace("t-", "r-"), "--namespace", namespace, check=False)
    if not before:
        cluster.kubectl("delete", DEFINITION, "--ignore-not-found")


def there(cluster: Cluster, namespace: str, what: str) -> bool:
    return cluster.run("kubectl", "get", what, "-n", namespace, check=False).returncode == 0


def test_install_upgrade_rollback_uninstall(cluster: Cluster, namespace: str, release: str) -> None:
    full = f"{release}-rstar2"
    values = sets(*SWITCHES, f"runtimeClass.name={release}", "operator.workers=3")
    notes = helm(cluster, "install", release, namespace, CHART, "--take-ownership", *values)
    assert f"kubectl rollout status -n {namespace} deployment/{full}-operator" in notes
    cluster.kubectl("wait", DEFINITION, "--for=condition=Established", "--timeout=60s")

    def workers() -> str:
        pod = cluster.get("deployment", f"{full}-operator", "-n", namespace)["spec"]["template"]["spec"]
        return next(one["value"] for one in pod["containers"][0]["env"] if one["name"] == "RSTAR2_WORKERS")

    def password() -> str:
        data = cluster.get("secret", f"{full}-mlflow", "-n", namespace)["data"]
        return base64.b64decode(data["MLFLOW_TRACKING_PASSWORD"]).decode()

    first = password()
    assert workers() == "3"
    helm(
        cluster, "upgrade", release, namespace, CHART, "--reuse-values", "--take-ownership", "--set=operator.workers=9"
    )
    assert workers() == "9"
    assert password() == first, "MLflow takes a password once: a new one would lock everyone out"
    helm(cluster, "rollback", release, namespace)
    assert workers() == "3"
    assert password() == first

    helm(cluster, "uninstall", release, namespace)
    assert there(cluster, namespace, DEFINITION), "every job of the cluster would be gone"
    for kept in (f"pvc/{full}-mlflow", f"secret/{full}-mlflow"):
        assert there(cluster, namespace, kept)
    for gone in (f"deployment/{full}-operator", f"serviceaccount/{full}-operator", f"runtimeclass/{release}"):
        assert not there(cluster, namespace, gone)

    helm(cluster, "install", release, namespace, CHART, "--take-ownership", *values)
    assert password() == first


def test_monitoring_is_taken_where_its_definitions_are(cluster: Cluster, namespace: str, release: str) -> None:
    """Prometheus Operator's kinds, in a cluster that has at least their names."""
    made = [definition(plural, kind) for plural, kind in MONITORING.items()]
    missing = [one for one in made if not there(cluster, namespace, f"crd/{one['metadata']['name']}")]
    cluster.apply(missing)
    try:
        for one in made:
            cluster.kubectl("wait", f"crd/{one['metadata']['name']}", "--for=condition=Established", "--timeout=60s")
        on = sets(*(f"monitoring.{name}.enabled=true" for name in ("serviceMonitor", "prometheusRule")))
        helm(cluster, "install", release, namespace, CHART, "--set=crds.install=false", *on)
        groups = cluster.get("prometheusrule", f"{release}-rstar2-operator", "-n", namespace)["spec"]["groups"]
        assert {rule["alert"] for group in groups for rule in group["rules"]} >= {"RStar2NobodyLeads"}
        helm(cluster, "uninstall", release, namespace)
    finally:
        for one in missing:
            cluster.kubectl("delete", f"crd/{one['metadata']['name']}")


def definition(plural: str, kind: str) -> dict[str, Any]:
    group = "monitoring.coreos.com"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": spec,
    }


@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster", "namespace"])
def test_what_the_operators_account_may_do(cluster: Cluster, namespace: str, release: str, everywhere: bool) -> None:
    scope = [] if everywhere else sets(f"watchNamespaces={{{namespace}}}")
    helm(cluster, "install", release, namespace, CHART, "--take-ownership", *scope)
    account = f"system:serviceaccount:{namespace}:{release}-rstar2-operator"

    def may(verb: str, what: str, where: str = namespace) -> bool:
        resource, _, part = what.partition("/")
        asked = [verb, resource, f"--subresource={part}", "-n", where, "--as", account]
        done = cluster.run("kubectl", "auth", "can-i", *asked, check=False)
        return done.stdout.strip() == "yes"

    # The authoriser hears of a new binding a moment later.
    wait_for("the rights", lambda: may("patch", "agenticrljobs.rstar2.dev/status"), 10)
    assert may("create", "jobs.batch")
    assert may("create", "secrets")
    assert may("create", "leases.coordination.k8s.io")
    for verb, what in (
        *(("get", "secrets"), ("list", "secrets"), ("update", "agenticrljobs.rstar2.dev"), ("create", "pods")),
        *(("create", "pods/exec"), ("delete", "pods"), ("get", "pods/log"), ("escalate", "roles")),
    ):
        assert not may(verb, what), f"{verb} {what}"
    assert may("create", "jobs.batch", "default") is everywhere
    for verb, what in (("create", "clusterroles"), ("get", "nodes"), ("delete", "namespaces")):
        assert not may(verb, what, "")

    grant(cluster, namespace, account, {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]})
    with pytest.raises(CommandFailed, match="attempting to grant RBAC permissions not currently held"):
        grant(cluster, namespace, account, {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})


def grant(cluster: Cluster, namespace: str, account: str, rule: dict[str, list[str]]) -> None:
    """Make a Role as the operator does for the trainer's account."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "made", "namespace": namespace},
        "rules": [rule],
    }
    cluster.kubectl("apply", "--server-side", "--as", account, "-f", "-", stdin=json.dumps(role))


def test_jobs_are_everyones_business_who_may_edit(cluster: Cluster, namespace: str, release: str) -> None:
    helm(cluster, "install", release, namespace, CHART, "--take-ownership")
    for role, verb in (("view", "get"), ("edit", "create"), ("admin", "delete")):
        rule = cluster.get("clusterrole", f"{namespace}-{release}-rstar2-{'view' if role == 'view' else 'edit'}")
        assert rule["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"
        assert any(verb in one["verbs"] and "agenticrljobs" in one["resources"] for one in rule["rules"])
