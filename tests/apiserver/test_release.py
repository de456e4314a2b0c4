"""The release of the chart, installed by helm on a real API server without a node."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

from tests.kube_node import binaries
from tests.support.kube_apiserver import KubeApiserver

CHART = Path(__file__).parents[2] / "helm" / "rstar2"
SECRETS = "/api/v1/namespaces/site/secrets"


def test_release_secret_is_below_500_kb(api: KubeApiserver) -> None:
    """helm keeps chart and rendered objects of a release in one Secret, which may have 1 MiB."""
    helm = binaries.ensure_binary(binaries.find_binary("helm"))
    command = [helm, "install", "rstar2", str(CHART), "--namespace", "site", "--create-namespace", "--no-hooks"]
    command += ["--take-ownership", "--set", "kueue.enabled=true,mlflow.enabled=true"]  # the server has the CRD
    environment = {**os.environ, "KUBECONFIG": str(api.kubeconfig)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    (release,) = (
        secret
        for secret in api.request("GET", SECRETS)["items"]
        if secret["metadata"]["name"] == "sh.helm.release.v1.rstar2.v1"
    )
    size = sum(len(base64.b64decode(value)) for value in release["data"].values())
    assert 10_000 < size < 500_000
