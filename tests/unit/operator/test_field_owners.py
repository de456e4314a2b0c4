"""Additions of other clients, from managedFields as the API server writes them."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_operator import names
from rstar2_operator.field_owners import additions

CONTAINERS = 'k:{"name":"executor"}'
OWN = {
    "f:metadata": {"f:labels": {"f:app": {}}},
    "f:spec": {
        "f:replicas": {},
        "f:selector": {},
        "f:template": {
            "f:metadata": {"f:labels": {"f:app": {}}},
            "f:spec": {
                "f:tolerations": {},
                "f:containers": {CONTAINERS: {".": {}, "f:image": {}, "f:env": {'k:{"name":"HOME"}': {".": {}}}}},
            },
        },
    },
}


def pod(fields: dict[str, Any]) -> dict[str, Any]:
    return {"f:spec": {"f:template": {"f:spec": fields}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            pod({"f:containers": {'k:{"name":"spy"}': {".": {}, "f:name": {}, "f:image": {}}}}),
            ["spec.template.spec.containers[name=spy]"],
        ),
        (
            pod({"f:containers": {CONTAINERS: {"f:env": {'k:{"name":"X"}': {".": {}, "f:value": {}}}}}}),
            ["spec.template.spec.containers[name=executor].env[name=X]"],
        ),
        (
            pod({"f:hostNetwork": {}, "f:securityContext": {"f:runAsUser": {}}}),
            ["spec.template.spec.hostNetwork", "spec.template.spec.securityContext.runAsUser"],
        ),
        (
            pod({"f:volumes": {".": {}, 'k:{"name":"root"}': {".": {}, "f:hostPath": {"f:path": {}}}}}),
            ["spec.template.spec.volumes[name=root]"],
        ),
    ],
)
def test_additions_of_a_pod_template_are_found(fields: dict[str, Any], expected: list[str]) -> None:
    """A container, variable, volume or setting of another client is named with its path and client."""
    metadata = {
        "managedFields": [
            {"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": OWN},
            {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": fields},
        ]
    }
    assert additions("Deployment", metadata) == [f"kubectl-edit: {path}" for path in expected]


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("Deployment", {"fieldsV1": {"f:metadata": {"f:annotations": {"f:deployment.kubernetes.io/revision": {}}}}}),
        ("Deployment", {"subresource": "status", "fieldsV1": {"f:status": {"f:replicas": {}}}}),
        ("Deployment", {"fieldsV1": {"f:spec": {"f:replicas": {}}}}),
        ("Deployment", {"subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}}),
        ("Deployment", {"fieldsV1": pod({"f:tolerations": {}})}),
        (
            "Deployment",
            {
                "fieldsV1": {
                    "f:spec": {
                        "f:template": {
                            "f:metadata": {
                                "f:annotations": {".": {}, "f:kubectl.kubernetes.io/restartedAt": {}},
                            }
                        }
                    }
                }
            },
        ),
        ("ConfigMap", {"fieldsV1": {"f:data": {"f:progress.json": {}}}}),
        ("ServiceAccount", {"fieldsV1": {"f:imagePullSecrets": {}}}),
    ],
)
def test_additions_of_controllers_are_not_reported(kind: str, entry: dict[str, Any]) -> None:
    """Status, replicas, restarts, fields that the operator owns too, and parts that it does not manage are no drift."""
    own = {"manager": names.FIELD_MANAGER, "operation": "Apply", "fieldsV1": OWN}
    assert additions(kind, {"managedFields": [own, {"manager": "other", "operation": "Update", **entry}]}) == []
