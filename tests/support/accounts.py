"""Service accounts on a `KubeApiserver`: with the rights that a chart or a manifest grants them, and with a token."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from scripts.setup import ROOT
from tests.kube_node.binaries import ensure_binary, find_binary
from tests.support.kube_apiserver import KubeApiserver

SITE, OPERATOR = "site", "rstar2-operator"
"""Namespace of the release, and name of the operator's account."""

RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "Role": "namespaces/{}/roles",
    "RoleBinding": "namespaces/{}/rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}


def chart(*values: str) -> list[dict[str, Any]]:
    """Return the objects of the chart in namespace SITE with these values."""
    command = [ensure_binary(find_binary("helm")), "template", "rstar2", str(ROOT / "helm" / "rstar2"), "-n", SITE]
    command += [word for value in values for word in ("--set", value)] + ["--kube-version", "1.34.0"]
    return [body for body in yaml.safe_load_all(subprocess.check_output(command, text=True)) if body]


def grant(api: KubeApiserver, objects: Iterable[Mapping[str, Any]], namespace: str = "") -> None:
    """Create the roles and bindings among some objects; with `namespace` only those in it."""
    for body in objects:
        own = body["metadata"].get("namespace", "")
        if body["kind"] in PATHS and namespace in ("", own):
            api.request("POST", f"{RBAC}/{PATHS[body['kind']].format(own)}", body)


def create_account(api: KubeApiserver, namespace: str, name: str) -> str:
    """Create a service account, and its namespace; return a token of it."""
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api.request("POST", accounts, {"metadata": {"name": name}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    return str(api.request("POST", f"{accounts}/{name}/token", request)["status"]["token"])


def kubeconfig(api: KubeApiserver, token: str, path: Path) -> Path:
    """Write a kubeconfig of an account; return its path."""
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(json.dumps(config))
    return path
