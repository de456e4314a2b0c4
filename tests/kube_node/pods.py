"""Manifests of pods for tests, which the restricted Pod Security level admits."""

from __future__ import annotations

from typing import Any

from tests.kube_node.images import BASE

Object = dict[str, Any]
SLEEP = ("sleep", "infinity")


def pod(
    namespace: str,
    name: str,
    *command: str,
    image: str = BASE,
    labels: dict[str, str] | None = None,
    volumes: list[Object] | None = None,
    mounts: list[Object] | None = None,
    **spec: Any,
) -> Object:
    """Return a pod with one container `main` that runs a command, by default an endless sleep.

    It is non-root, with a read-only root, a writable /tmp and no capabilities. `spec` is merged into its spec.
    """
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": list(command or SLEEP),
        "env": [{"name": "HOME", "value": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *(mounts or [])],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *(volumes or [])],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **spec,
        },
    }


def restricted(namespace: str) -> Object:
    """Return a namespace that admits only pods of the restricted Pod Security level."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}


def service(namespace: str, name: str, selector: dict[str, str], port: int, *, headless: bool = False) -> Object:
    """Return a Service with one TCP port."""
    spec: Object = {"selector": selector, "ports": [{"port": port, "protocol": "TCP"}]}
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
