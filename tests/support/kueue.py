"""The real Kueue controller on loopback, next to a `KubeApiserver`, with the rights of its own manifests.

Its webhooks do not run: so a batch Job is not suspended when it is created, but when Kueue reconciles it.

It reads the certificate of its metrics from a fixed path under /etc, so it starts in a mount namespace of its own.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.utils.ports import free_ports
from scripts.setup import CACHE, exclusive, find_go, find_uv
from tests.kube_node import binaries
from tests.support.accounts import create_account, grant, kubeconfig
from tests.support.kube_apiserver import KubeApiserver
from tests.support.servers import component

GROUP = "kueue.x-k8s.io/v1beta2"
API = f"/apis/{GROUP}"
CERTIFICATES = "/etc/kueue/metrics/certs"
START_SECONDS = 180.0
PODS_READY_SECONDS = 30
"""Time that an admitted job has until all its pods run."""


ACCOUNT = {"namespace": "kueue-system", "name": "kueue-controller-manager"}
"""Of its installation, and the default of the chart's value kueue.serviceAccount."""
LOG = "kueue.log"


@contextlib.contextmanager
def kueue(api: KubeApiserver, folder: Path) -> Iterator[None]:
    """Install Kueue's CRDs and run its controller. `folder`: for its configuration and LOG."""
    program = binaries.ensure_binary(binaries.KUEUE)
    _install_crds(api, Path(program).parent / "bases")
    account = kubeconfig(api, _create_account(api), folder / "kueue-kubeconfig")
    key, certificate = folder / "tls.key", folder / "tls.crt"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kueue"]
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    (folder / "config.json").write_text(json.dumps(_configuration(folder)))
    command = shlex.join([program, f"--config={folder / 'config.json'}", f"--kubeconfig={account}"])
    copy = f"mkdir -p {CERTIFICATES} && cp {key} {certificate} {CERTIFICATES}"
    script = f"mount -t tmpfs none /etc && {copy} && exec {command}"
    with component(["unshare", "--map-root-user", "--mount", "sh", "-c", script], folder / LOG):
        yield


def _create_account(api: KubeApiserver) -> str:
    """Create Kueue's account with the rights of its installation; return a token."""
    token = create_account(api, **ACCOUNT)
    for name in ("role", "role_binding", "manager_secrets_role", "manager_secrets_role_binding"):
        body = yaml.safe_load((_manifests() / f"{name}.yaml").read_text())
        if "namespace" in body["metadata"]:
            body["metadata"]["namespace"] = ACCOUNT["namespace"]
        if "subjects" in body:
            body["subjects"] = [{"kind": "ServiceAccount", **ACCOUNT}]
        grant(api, [body])
    return token


def _manifests() -> Path:
    """Return a copy of the folder of Kueue's module with its roles, next to its binary."""
    copy = Path(binaries.ensure_binary(binaries.KUEUE)).parent / "rbac"
    with exclusive(CACHE / "kueue-rbac.lock", "copying the roles of Kueue"):
        if not copy.exists():
            module = binaries.TOOLS / binaries.KUEUE.module
            source = binaries.module_source(binaries.KUEUE.versioned_by, module, find_go(find_uv(), module))
            shutil.copytree(source / "config" / "components" / "rbac", copy, copy_function=shutil.copyfile)
    return copy


def _install_crds(api: KubeApiserver, folder: Path) -> None:
    plurals = []
    for file in sorted(folder.glob("*.yaml")):
        body = yaml.safe_load(file.read_text())
        api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
        plurals.append(body["spec"]["names"]["plural"])
    deadline = time.monotonic() + START_SECONDS
    for plural in plurals:
        while not _is_served(api, plural):
            assert time.monotonic() < deadline, f"{plural} is not served"
            time.sleep(0.2)


def _is_served(api: KubeApiserver, plural: str) -> bool:
    try:
        api.request("GET", f"{API}/{plural}")
    except urllib.error.HTTPError:
        return False
    resources = api.request("GET", API)["resources"]
    return any(each["name"] == plural for each in resources)


def _configuration(folder: Path) -> dict[str, Any]:
    health, metrics, webhook = free_ports(3)
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"], "externalFrameworks": ["AgenticRLJob.v1alpha1.rstar2.dev"]},
        "manageJobsWithoutQueueName": True,  # also of the operator's Jobs, if it would not know their owner
        "featureGates": {"VisibilityOnDemand": False},
        # A job whose pods do not all run in time is evicted, and queued again a second later.
        "waitForPodsReady": {
            "timeout": f"{PODS_READY_SECONDS}s",
            "requeuingStrategy": {"backoffBaseSeconds": 1, "backoffLimitCount": 10},
        },
    }


def create_queue(api: KubeApiserver, namespace: str, queue: str, **quota: str) -> None:
    """Create a LocalQueue with a ClusterQueue of its name: one flavor, `mi300x`, with this quota per resource."""
    flavor = {"nodeLabels": {"pool": "mi300x"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    _create(api, "ResourceFlavor", "resourceflavors", "mi300x", flavor)
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": "mi300x", "resources": resources}]}
    spec = {"namespaceSelector": {}, "preemption": {"withinClusterQueue": "LowerPriority"}, "resourceGroups": [group]}
    _create(api, "ClusterQueue", "clusterqueues", queue, spec)
    _create(api, "LocalQueue", f"namespaces/{namespace}/localqueues", queue, {"clusterQueue": queue})


def _create(api: KubeApiserver, kind: str, path: str, name: str, spec: dict[str, Any]) -> None:
    body = {"apiVersion": GROUP, "kind": kind, "metadata": {"name": name}, "spec": spec}
    api.request("POST", f"{API}/{path}", body)
