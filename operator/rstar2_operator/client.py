"""The operator's requests to the API server: create, apply, list, delete, with objects as plain dicts.

A thin layer over the official client's connection and authentication. API paths come from a table, so that no discovery
is necessary.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client as aio
from kubernetes.aio.client.exceptions import ApiException

from rstar2_operator import names

KINDS = {
    "AgenticRLJob": (f"apis/{names.GROUP}/{names.VERSION}", names.PLURAL),
    "ConfigMap": ("api/v1", "configmaps"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "PersistentVolumeClaim": ("api/v1", "persistentvolumeclaims"),
    "Pod": ("api/v1", "pods"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "Job": ("apis/batch/v1", "jobs"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Event": ("apis/events.k8s.io/v1", "events"),
    "Workload": ("apis/kueue.x-k8s.io/v1beta2", "workloads"),
    "ResourceFlavor": ("apis/kueue.x-k8s.io/v1beta2", "resourceflavors"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
}
"""Kind -> (API path, plural)."""
APPLY = "application/apply-patch+yaml"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
"""Media type of lists without specs and statuses."""
TIMEOUT_SECONDS = 30.0
UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError)
"""Exceptions of a request, besides ApiException, if the API server is unreachable."""
OVERLOADED = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses of an API server that cannot serve the request now."""
LONGEST_RETRY_AFTER = 30.0

Body = dict[str, Any]


def is_transient(error: Exception) -> bool:
    """Whether the operator must repeat the request, and no person can do anything about the error.

    A failing admission webhook has status 500 too, but is a defect of the cluster that its message names.
    """
    if not isinstance(error, ApiException):
        return isinstance(error, UNREACHABLE)
    return error.status in OVERLOADED and "failed calling webhook" not in (error.body or "")


def retry_after(error: Exception) -> float:
    """Return the seconds that the API server asks to wait (Retry-After); 0 if it does not."""
    headers = getattr(error, "headers", None) or {}
    text = str(headers.get("Retry-After", ""))
    return min(float(text), LONGEST_RETRY_AFTER) if text.isdecimal() else 0.0


class KubeClient:
    """Requests of one operator process. Every method raises ApiException."""

    def __init__(self, api: aio.ApiClient) -> None:
        self._api = api

    async def apply(self, body: Body, *, subresource: str = "") -> Body:
        """Apply on the server with the operator's field manager; it takes fields over from other managers."""
        meta = body["metadata"]
        path = _path(body["kind"], meta["namespace"], meta["name"]) + (f"/{subresource}" if subresource else "")
        query = [("fieldManager", names.FIELD_MANAGER), ("force", "true")]
        return await self._call("PATCH", path, body, query, content_type=APPLY)

    async def create(self, body: Body, *, dry_run: bool = False) -> Body:
        """Create; with `dry_run` only validate. Status 409 if the object exists."""
        path = _path(body["kind"], body["metadata"]["namespace"])
        query = [("fieldManager", names.FIELD_MANAGER), *([("dryRun", "All")] if dry_run else [])]
        return await self._call("POST", path, body, query)

    async def replace(self, body: Body) -> Body:
        """Replace. Status 409 if the object has changed since it was read."""
        meta = body["metadata"]
        return await self._call("PUT", _path(body["kind"], meta["namespace"], meta["name"]), body, [])

    async def read(self, kind: str, namespace: str, name: str) -> Body:
        """Return one object. Status 404 if it does not exist."""
        return await self._call("GET", _path(kind, namespace, name), None, [])

    async def find(self, kind: str, namespace: str, name: str) -> Body | None:
        """Return one object, None if it does not exist."""
        try:
            return await self.read(kind, namespace, name)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    async def list_metadata(self, kind: str, namespace: str, *, selector: str) -> list[Body]:
        """Return the metadata of every object of a kind. An empty namespace means all namespaces."""
        query = [("labelSelector", selector)] if selector else []
        answer = await self._call("GET", _path(kind, namespace), None, query, accept=METADATA)
        return [item["metadata"] for item in answer.get("items") or ()]

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, force: bool = False) -> Body:
        """Delete the object with that UID, its dependents in the background. Status 404 or 409 if it does not exist.

        `force`: of a pod, without waiting for its kubelet. Return the object if it remains until its finalizers are
        removed; otherwise a Status.
        """
        options: Body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if force:
            options["gracePeriodSeconds"] = 0
        return await self._call("DELETE", _path(kind, namespace, name), options, [])

    async def _call(
        self,
        method: str,
        path: str,
        body: Body | None,
        query: list[tuple[str, str]],
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Body:
        headers = {"Accept": accept, "Content-Type": content_type}
        request = await self._api.param_serialize(
            method=method,
            resource_path=path,
            query_params=query,
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self._api.call_api(*request, _request_timeout=TIMEOUT_SECONDS)
        text: bytes = await response.read()  # type: ignore[no-untyped-call]
        if not 200 <= response.status < 300:
            raise ApiException.from_response(http_resp=response, body=text.decode(errors="replace"), data=None)
        answer: Body = await response.response.json() if text else {}
        return answer


def _path(kind: str, namespace: str, name: str = "") -> str:
    root, plural = KINDS[kind]
    where = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"/{root}{where}/{plural}" + (f"/{quote(name)}" if name else "")
