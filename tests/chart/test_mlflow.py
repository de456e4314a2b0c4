"""The chart's MLflow: it answers to its Service name, to nobody without a password, and keeps its data."""

from __future__ import annotations

import base64
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from mlflow.server.security_utils import is_allowed_host_header

from tests.chart.conftest import Objects
from tests.chart.test_chart import env_of

Render = Callable[..., Objects]
ON = ("mlflow.enabled=true", "mlflow.allowedHosts={mlflow.example.com}")
NAME = "rstar2-mlflow"


def arguments(objects: Objects) -> dict[str, str]:
    (container,) = objects.one("Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["mlflow", "server"]
    return dict(one.removeprefix("--").split("=", 1) for one in container["command"][2:])


@pytest.mark.parametrize("domain", ["cluster.local", "k8s.example.org"])
def test_it_answers_to_its_names_alone(rendered: Render, domain: str) -> None:
    objects = rendered(*ON, f"operator.clusterDomain={domain}")
    hosts = arguments(objects)["allowed-hosts"].split(",")
    asked = urlsplit(env_of(objects)["RSTAR2_MLFLOW_URI"]).netloc
    for good in (asked, NAME, f"{NAME}.site:5000", f"{NAME}.site.svc:5000", "localhost:5000", "mlflow.example.com"):
        assert is_allowed_host_header(hosts, good), good
    for bad in ("evil.example.com", f"{NAME}.site.svc.{domain}.evil.com:5000", "10.0.0.7:5000"):
        assert not is_allowed_host_header(hosts, bad), bad
    port = objects.one("Service", NAME)["spec"]["ports"][0]["port"]
    assert asked.endswith(f":{port}")
    assert arguments(objects)["port"] == "5000"


def test_a_password_is_made_and_asked_for(rendered: Render) -> None:
    objects = rendered(*ON)
    assert arguments(objects)["app-name"] == "basic-auth"
    secret = {key: base64.b64decode(value).decode() for key, value in objects.one("Secret", NAME)["data"].items()}
    assert secret["MLFLOW_TRACKING_USERNAME"] == "admin"
    assert len(secret["MLFLOW_TRACKING_PASSWORD"]) == 32
    assert secret["MLFLOW_TRACKING_PASSWORD"] != secret["secret-key"]
    pod = objects.one("Deployment", NAME)["spec"]["template"]["spec"]
    used = {
        one["valueFrom"]["secretKeyRef"]["key"]: one["valueFrom"]["secretKeyRef"]["name"]
        for one in pod["containers"][0]["env"]
        if "valueFrom" in one
    }
    assert used == dict.fromkeys(secret, NAME)
    assert "/mlflow/basic_auth.db" in objects.one("ConfigMap", NAME)["data"]["basic_auth.ini"]


def test_a_secret_and_a_claim_of_the_site(rendered: Render) -> None:
    objects = rendered(*ON, "mlflow.auth.existingSecret=theirs", "mlflow.storage.existingClaim=disk")
    assert not {"Secret", "PersistentVolumeClaim"} & set(objects.kinds())
    pod = objects.one("Deployment", NAME)["spec"]["template"]["spec"]
    assert {"claimName": "disk"} in [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
    assert "theirs" in str(pod["containers"][0]["env"])


def test_without_passwords(rendered: Render) -> None:
    objects = rendered(*ON, "mlflow.auth.enabled=false")
    assert "app-name" not in arguments(objects)
    assert not {"Secret", "ConfigMap"} & set(objects.kinds())


def test_data_is_kept(rendered: Render) -> None:
    keep = {"helm.sh/resource-policy": "keep"}
    objects = rendered(*ON)
    assert objects.one("PersistentVolumeClaim", NAME)["metadata"]["annotations"] == keep
    assert objects.one("Secret", NAME)["metadata"]["annotations"] == keep
    assert objects.one("Deployment", NAME)["spec"]["strategy"] == {"type": "Recreate"}
    pod = objects.one("Deployment", NAME)["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert arguments(objects)["backend-store-uri"] == f"sqlite:///{mounts['data']}/mlflow.db"
    assert arguments(objects)["artifacts-destination"].startswith(mounts["data"])
    gone = rendered(*ON, "mlflow.storage.keep=false")
    assert "annotations" not in gone.one("PersistentVolumeClaim", NAME)["metadata"]
