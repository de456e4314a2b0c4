"""The chart on a real API server: install, upgrade, rollback, uninstall, and the rights of the operator's account.

No pod has to run here; tests/cluster/test_operator_e2e.py tests the operator.
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
    return [argument for value in values for argument in ("--set", value)]


@pytest.fixture
def release(served: Cluster, namespace: str) -> Iterator[str]:
    """Provide a name for a release, which is uninstalled; the CRD, which an uninstall keeps, stays."""
    yield namespace.replace("t-", "r-")
    served.run("helm", "uninstall", namespace.replace("t-", "r-"), "--namespace", namespace, check=False)


def exists(served: Cluster, namespace: str, resource: str) -> bool:
    return served.run("kubectl", "get", resource, "-n", namespace, check=False).returncode == 0


def test_chart_install_upgrade_rollback_uninstall(served: Cluster, namespace: str, release: str) -> None:
    """Values follow each operation; MLflow's password, its claim and the CRD survive all of them."""
    full = f"{release}-rstar2"
    values = sets(*SWITCHES, f"runtimeClass.name={release}", "operator.workers=3")
    notes = helm(served, "install", release, namespace, CHART, "--take-ownership", *values)
    assert f"kubectl rollout status -n {namespace} deployment/{full}-operator" in notes
    served.kubectl("wait", DEFINITION, "--for=condition=Established", "--timeout=180s")

    def workers() -> str:
        pod = served.get("deployment", f"{full}-operator", "-n", namespace)["spec"]["template"]["spec"]
        return next(env["value"] for env in pod["containers"][0]["env"] if env["name"] == "RSTAR2_WORKERS")

    def password() -> str:
        data = served.get("secret", f"{full}-mlflow", "-n", namespace)["data"]
        return base64.b64decode(data["MLFLOW_TRACKING_PASSWORD"]).decode()

    original = password()
    assert workers() == "3"
    helm(served, "upgrade", release, namespace, CHART, "--reuse-values", "--take-ownership", "--set=operator.workers=9")
    assert workers() == "9"
    assert password() == original, "MLflow reads its password once: after a change no client could log in"
    helm(served, "rollback", release, namespace)
    assert workers() == "3"
    assert password() == original

    helm(served, "uninstall", release, namespace)
    assert exists(served, namespace, DEFINITION), "without the CRD every job of the cluster would be deleted"
    for kept in (f"pvc/{full}-mlflow", f"secret/{full}-mlflow"):
        assert exists(served, namespace, kept)
    for gone in (f"deployment/{full}-operator", f"serviceaccount/{full}-operator", f"runtimeclass/{release}"):
        assert not exists(served, namespace, gone)

    helm(served, "install", release, namespace, CHART, "--take-ownership", *values)
    assert password() == original


def test_chart_monitoring_objects_are_accepted(served: Cluster, namespace: str, release: str) -> None:
    """With the CRDs of Prometheus Operator, the chart installs its ServiceMonitor and PrometheusRule."""
    definitions = [definition(plural, kind) for plural, kind in MONITORING.items()]
    missing = [crd for crd in definitions if not exists(served, namespace, f"crd/{crd['metadata']['name']}")]
    served.apply(missing)
    try:
        for crd in definitions:
            served.kubectl("wait", f"crd/{crd['metadata']['name']}", "--for=condition=Established", "--timeout=180s")
        on = sets(*(f"monitoring.{name}.enabled=true" for name in ("serviceMonitor", "prometheusRule")))
        helm(served, "install", release, namespace, CHART, "--set=crds.install=false", *on)
        groups = served.get("prometheusrule", f"{release}-rstar2-operator", "-n", namespace)["spec"]["groups"]
        assert {rule["alert"] for group in groups for rule in group["rules"]} >= {"RStar2OperatorNoLeader"}
        helm(served, "uninstall", release, namespace)
    finally:
        for crd in missing:
            served.kubectl("delete", f"crd/{crd['metadata']['name']}")


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
def test_chart_operator_rights_are_minimal(served: Cluster, namespace: str, release: str, everywhere: bool) -> None:
    """The account has the rights that the operator uses, in the watched namespaces, and no others."""
    scope = [] if everywhere else sets(f"watchNamespaces={{{namespace}}}")
    helm(served, "install", release, namespace, CHART, "--take-ownership", *scope)
    account = f"system:serviceaccount:{namespace}:{release}-rstar2-operator"

    def may(verb: str, target: str, scope: str = namespace) -> bool:
        resource, _, part = target.partition("/")
        arguments = [verb, resource, f"--subresource={part}", "-n", scope, "--as", account]
        done = served.run("kubectl", "auth", "can-i", *arguments, check=False)
        return done.stdout.strip() == "yes"

    # The authoriser reads each new binding after a short delay. Pods of lost nodes are deleted, with spec.nodeLoss.
    for verb, target in (
        *(("patch", "agenticrljobs.rstar2.dev/status"), ("create", "jobs.batch"), ("create", "secrets")),
        *(("create", "leases.coordination.k8s.io"), ("delete", "pods")),
    ):
        wait_for(f"the right {verb} {target}", lambda: may(verb, target), 120)  # noqa: B023
    for verb, target in (
        *(("get", "secrets"), ("list", "secrets"), ("update", "agenticrljobs.rstar2.dev"), ("create", "pods")),
        *(("create", "pods/exec"), ("deletecollection", "pods"), ("patch", "pods"), ("get", "pods/log")),
        ("escalate", "roles"),
    ):
        assert not may(verb, target), f"{verb} {target}"
    assert may("create", "jobs.batch", "default") is everywhere
    for verb, target in (("create", "clusterroles"), ("get", "nodes"), ("delete", "namespaces")):
        assert not may(verb, target, "")

    grant(served, namespace, account, {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]})
    with pytest.raises(CommandFailed, match="attempting to grant RBAC permissions not currently held"):
        grant(served, namespace, account, {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})


def grant(served: Cluster, namespace: str, account: str, rule: dict[str, list[str]]) -> None:
    """Create a Role as the operator does for the trainer's account."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "granted", "namespace": namespace},
        "rules": [rule],
    }
    served.kubectl("apply", "--server-side", "--as", account, "-f", "-", stdin=json.dumps(role))


def test_chart_lets_kueue_read_jobs(served: Cluster, namespace: str, release: str) -> None:
    """With kueue.enabled Kueue's account may read jobs, which its externalFrameworks needs, and nothing more."""
    helm(served, "install", release, namespace, CHART, "--take-ownership", *sets("kueue.enabled=true"))
    account = "system:serviceaccount:kueue-system:kueue-controller-manager"

    def may(verb: str) -> bool:
        arguments = [verb, "agenticrljobs.rstar2.dev", "-n", namespace, "--as", account]
        return served.run("kubectl", "auth", "can-i", *arguments, check=False).stdout.strip() == "yes"

    for verb in ("get", "list", "watch"):
        wait_for(f"the right to {verb} jobs", lambda: may(verb), 120)  # noqa: B023
    assert not any(may(verb) for verb in ("create", "patch", "delete"))


def test_chart_job_rights_aggregate_to_default_roles(served: Cluster, namespace: str, release: str) -> None:
    """The roles view, edit and admin include the matching rights on jobs."""
    helm(served, "install", release, namespace, CHART, "--take-ownership")
    for role, verb in (("view", "get"), ("edit", "create"), ("admin", "delete")):
        rule = served.get("clusterrole", f"{namespace}-{release}-rstar2-{'view' if role == 'view' else 'edit'}")
        assert rule["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"
        assert any(verb in item["verbs"] and "agenticrljobs" in item["resources"] for item in rule["rules"])
