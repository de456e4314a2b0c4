"""The chart's MLflow: accepted host names, passwords, and storage that outlives the release."""

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
    (container,) = objects.single("Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["mlflow", "server"]
    return dict(option.removeprefix("--").split("=", 1) for option in container["command"][2:])


@pytest.mark.parametrize("domain", ["cluster.local", "k8s.example.org"])
def test_mlflow_accepts_its_host_names_alone(rendered: Render, domain: str) -> None:
    """MLflow accepts the URL that jobs get and the configured hosts, and rejects all others (DNS rebinding)."""
    objects = rendered(*ON, f"operator.clusterDomain={domain}")
    hosts = arguments(objects)["allowed-hosts"].split(",")
    netloc = urlsplit(env_of(objects)["RSTAR2_MLFLOW_URI"]).netloc
    for good in (netloc, NAME, f"{NAME}.site:5000", f"{NAME}.site.svc:5000", "localhost:5000", "mlflow.example.com"):
        assert is_allowed_host_header(hosts, good), good
    for bad in ("evil.example.com", f"{NAME}.site.svc.{domain}.evil.com:5000", "10.0.0.7:5000"):
        assert not is_allowed_host_header(hosts, bad), bad
    port = objects.single("Service", NAME)["spec"]["ports"][0]["port"]
    assert netloc.endswith(f":{port}")
    assert arguments(objects)["port"] == "5000"


def test_mlflow_by_default_requires_generated_password(rendered: Render) -> None:
    """The chart generates user, password and secret key, and the pod reads all of them from the Secret."""
    objects = rendered(*ON)
    assert arguments(objects)["app-name"] == "basic-auth"
    secret = {key: base64.b64decode(value).decode() for key, value in objects.single("Secret", NAME)["data"].items()}
    assert secret["MLFLOW_TRACKING_USERNAME"] == "admin"
    assert len(secret["MLFLOW_TRACKING_PASSWORD"]) == 32
    assert secret["MLFLOW_TRACKING_PASSWORD"] != secret["secret-key"]
    pod = objects.single("Deployment", NAME)["spec"]["template"]["spec"]
    used = {
        entry["valueFrom"]["secretKeyRef"]["key"]: entry["valueFrom"]["secretKeyRef"]["name"]
        for entry in pod["containers"][0]["env"]
        if "valueFrom" in entry
    }
    assert used == dict.fromkeys(secret, NAME)
    assert "/mlflow/basic_auth.db" in objects.single("ConfigMap", NAME)["data"]["basic_auth.ini"]


def test_mlflow_with_existing_objects_creates_none(rendered: Render) -> None:
    """An existing Secret and claim replace those of the chart."""
    objects = rendered(*ON, "mlflow.auth.existingSecret=theirs", "mlflow.storage.existingClaim=disk")
    assert not {"Secret", "PersistentVolumeClaim"} & set(objects.kinds())
    pod = objects.single("Deployment", NAME)["spec"]["template"]["spec"]
    assert {"claimName": "disk"} in [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
    assert "theirs" in str(pod["containers"][0]["env"])


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_mlflow_listens_on_its_host(rendered: Render, host: str) -> None:
    """In a cluster of IPv6 alone it listens there."""
    assert arguments(rendered(*ON, f"mlflow.host={host}"))["host"] == host


def test_mlflow_without_auth_has_no_secret(rendered: Render) -> None:
    """auth.enabled=false removes the basic-auth app and its objects."""
    objects = rendered(*ON, "mlflow.auth.enabled=false")
    assert "app-name" not in arguments(objects)
    assert not {"Secret", "ConfigMap"} & set(objects.kinds())


def test_mlflow_data_after_uninstall_is_kept(rendered: Render) -> None:
    """Runs and artifacts are on the claim, and `helm uninstall` keeps claim and Secret unless storage.keep is false."""
    keep = {"helm.sh/resource-policy": "keep"}
    objects = rendered(*ON)
    assert objects.single("PersistentVolumeClaim", NAME)["metadata"]["annotations"] == keep
    assert objects.single("Secret", NAME)["metadata"]["annotations"] == keep
    assert objects.single("Deployment", NAME)["spec"]["strategy"] == {"type": "Recreate"}
    pod = objects.single("Deployment", NAME)["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert arguments(objects)["backend-store-uri"] == f"sqlite:///{mounts['data']}/mlflow.db"
    assert arguments(objects)["artifacts-destination"].startswith(mounts["data"])
    deleted = rendered(*ON, "mlflow.storage.keep=false")
    assert "annotations" not in deleted.single("PersistentVolumeClaim", NAME)["metadata"]
