"""The operator's requests to the API server: create, apply, list, watch, delete, with objects as plain dicts.

A thin layer over the official client's connection and authentication. API paths come from a table, so that no discovery
is necessary.
"""

from __future__ import annotations

import email.utils
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client as aio
from kubernetes.aio.client.exceptions import ApiException
from pydantic_core import from_json

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
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Event": ("apis/events.k8s.io/v1", "events"),
    "Workload": (f"apis/{names.KUEUE_API}", "workloads"),
    "ResourceFlavor": (f"apis/{names.KUEUE_API}", "resourceflavors"),
    "RuntimeClass": ("apis/node.k8s.io/v1", "runtimeclasses"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "WorkloadPriorityClass": (f"apis/{names.KUEUE_API}", "workloadpriorityclasses"),
    "ResourceClaim": ("apis/resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": ("apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "Warning": ("api/v1", "events"),
    "Node": ("api/v1", "nodes"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
}
"""Kind -> (API path, plural). Warning: an Event of the older API, which other components write."""
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "apply", "DELETE": "delete"}
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
"""Media type of lists without specs and statuses."""
UNCOMPRESSED = {"Accept-Encoding": "identity"}
"""Header of requests: compression costs both sides more time than the network of a cluster saves."""
TIMEOUT_SECONDS = 30.0
UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError)
"""Exceptions of a request, besides ApiException, if the API server is unreachable."""
OVERLOADED = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses of an API server that cannot serve the request now."""
MODIFIED = "the object has been modified"
"""The API server's words about a write that met another one, such as that of the usage of a ResourceQuota."""
REPLACED = (
    *("UID in precondition", "UID in the precondition", "uid mismatch", "/metadata/uid"),
    "metadata.uid: Invalid value",  # of a server-side apply
)
"""Parts of the API server's words about a write with the UID of an object that is gone; another may have its name."""
LASTING_CAUSES = (
    "failed calling webhook",
    "denied the request",
    "field not declared in schema",
    "request is too large",
)
"""Parts of the API server's words about errors with status 5xx that no repetition corrects.

A webhook fails, or denies with a status of its own; an older CRD does not declare a field of a server-side apply; the
object is too large for etcd.
"""
LASTING_SECONDS = 120.0
"""Seconds after which transient errors of a job's requests are problems of the job."""
LONGEST_RETRY_AFTER = 30.0
PAGE_OBJECTS = 50
"""Objects per response of a list; memory for the decoded objects of a page is not returned to the system."""
WATCH_SECONDS = 150
"""Time after which the API server ends a watch."""
SILENCE_SECONDS = 180.0
"""Time without a byte after which a watch is repeated: the connection is broken."""
METADATA_FIELDS = ("uid", "namespace", "name", "creationTimestamp")
"""Fields that `list_metadata` returns, and the labels."""

SHOWN_BYTES = 120
"""Maximum bytes of an answer that an error message has."""
CLOCK_TOLERANCE_SECONDS = 30.0
"""Difference between the clocks of this machine and of the API server that is none: of a slow response."""

Body = dict[str, Any]
log = logging.getLogger(__name__)


class NotJson(aiohttp.ClientError):
    """A response, or a line of a watch, that is not an object of an API server: a proxy has sent or cut it."""


def _decoded(text: bytes) -> Body:
    """Return the object in a response or in a line of a watch. Raises NotJson."""
    try:
        result = from_json(text)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise NotJson(f"the answer is no JSON object: {text[:SHOWN_BYTES].decode(errors='replace')!r}")
    return result


def is_transient(error: Exception) -> bool:
    """Return whether the operator must repeat the request, and no person can do anything about the error."""
    if not isinstance(error, ApiException):
        return isinstance(error, UNREACHABLE)
    text = error.body or ""
    if error.status == 409:
        return MODIFIED in text
    return error.status in OVERLOADED and not any(cause in text for cause in LASTING_CAUSES)


def is_gone(error: ApiException) -> bool:
    """Return whether the object that a write names by its UID does not exist.

    A write with another status 409 has not changed the object. A failed test of a JSON Patch has status 422.
    """
    names_uid = any(part in (error.body or "") for part in REPLACED)
    return error.status == 404 or (error.status in (409, 422) and names_uid)


@dataclass(slots=True)
class TransientErrors:
    """The transient errors of one job's requests."""

    since: float | None = None
    """Monotonic time of the first one after a round without any."""
    _in_round: bool = False
    """Whether this round had one."""

    def start_round(self) -> None:
        """Record the start of a round."""
        self._in_round = False

    def end_round(self) -> None:
        """Record the end of a round that did not fail; other rejections do not count."""
        self.since = self.since if self._in_round else None

    def must_retry(self, error: Exception) -> bool:
        """Return whether the round must be repeated without a report: the error is transient and does not last."""
        if not is_transient(error):
            return False
        now = time.monotonic()
        self.since, self._in_round = now if self.since is None else self.since, True
        return now < self.since + LASTING_SECONDS


def retry_after(error: Exception) -> float:
    """Return the seconds that the API server asks to wait (Retry-After); 0 if it does not."""
    headers = getattr(error, "headers", None) or {}
    text = str(headers.get("Retry-After", ""))
    return min(float(text), LONGEST_RETRY_AFTER) if text.isdecimal() else 0.0


def connection(configuration: aio.Configuration) -> aio.ApiClient:
    """Return a connection that reads the proxy from the environment once; aiohttp would use two threads per request."""
    server = urlsplit(configuration.host)
    if configuration.proxy is None and not proxy_bypass(server.hostname or ""):
        configuration.proxy = getproxies().get(server.scheme)
    configuration.client_session_kwargs = {"trust_env": False}
    return aio.ApiClient(configuration)


class KubeClient:
    """Requests of one operator process. Every method raises ApiException."""

    def __init__(self, api: aio.ApiClient, *, count: Callable[[str, str, int], None] | None = None) -> None:
        """`count` is called with verb, kind and HTTP status of each response."""
        self._api = api
        self._count = count or (lambda verb, kind, status: None)
        self._ahead = 0.0
        """Seconds by which the API server's clock is ahead; 0 within the tolerance."""

    def clock(self) -> float:
        """Return the time of the API server, whose timestamps the objects have; in seconds since the epoch."""
        return time.time() + self._ahead

    def _compare_clocks(self, date: str | None) -> None:
        """Set the clock by the header `Date` of a response."""
        parsed = email.utils.parsedate_tz(date or "")
        if parsed is None:
            return
        ahead = email.utils.mktime_tz(parsed) - time.time()
        if abs(ahead - self._ahead) <= CLOCK_TOLERANCE_SECONDS:
            return
        self._ahead = ahead if abs(ahead) > CLOCK_TOLERANCE_SECONDS else 0.0
        log.warning("the clock of the API server is %.0f s ahead of that of this node; its time counts", ahead)

    async def apply(
        self, body: Body, *, subresource: str = "", manager: str = names.FIELD_MANAGER, force: bool = True
    ) -> Body:
        """Apply on the server. With `force` it takes fields over from other field managers than `manager`.

        If the body has a UID, an object with another one stays as it is, and none is created: `is_gone`.
        """
        meta = body["metadata"]
        path = _path(body["kind"], meta["namespace"], meta["name"]) + (f"/{subresource}" if subresource else "")
        query = [("fieldManager", manager), ("force", str(force).lower())]
        return await self._call("PATCH", path, body, query, content_type=APPLY)

    async def patch(self, kind: str, namespace: str, name: str, operations: list[Body]) -> Body:
        """Apply a JSON Patch, with the operator's field manager."""
        query = [("fieldManager", names.FIELD_MANAGER)]
        return await self._call("PATCH", _path(kind, namespace, name), operations, query, content_type=JSON_PATCH)

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

    async def openapi(self) -> Body:
        """Return the OpenAPI document of the version of AgenticRLJob. Status 404 if the cluster has no definition."""
        return await self._call("GET", f"/openapi/v3/apis/{names.GROUP}/{names.VERSION}", None, [])

    async def find(self, kind: str, namespace: str, name: str) -> Body | None:
        """Return one object, None if it does not exist."""
        try:
            return await self.read(kind, namespace, name)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    async def list_metadata(self, kind: str, namespace: str, *, selector: str) -> list[Body]:
        """Return uid, namespace, name, creation time and job label of every object of a kind.

        An empty namespace means all namespaces.
        """
        result = []
        async for page in self.pages(kind, namespace, selectors={"labelSelector": selector}, accept=METADATA):
            for item in page["items"] or ():
                meta = item["metadata"]
                job = meta.get("labels", {}).get(names.JOB_LABEL)
                kept = {field: meta[field] for field in METADATA_FIELDS if field in meta}
                result.append(kept | {"labels": {names.JOB_LABEL: job} if job else {}})
        return result

    async def pages(
        self, kind: str, namespace: str, *, selectors: dict[str, str], accept: str = "application/json"
    ) -> AsyncIterator[Body]:
        """Yield the list of a kind in pages. Status 410 if it lasts too long: the caller must list again.

        `selectors`: the query parameters labelSelector and fieldSelector.
        """
        query = [("limit", str(PAGE_OBJECTS)), *((name, text) for name, text in selectors.items() if text)]
        position = ""
        while True:
            more = [("continue", position)] if position else []
            page = await self._call("GET", _path(kind, namespace), None, [*query, *more], accept=accept, verb="list")
            if not {"metadata", "items"} <= page.keys():
                raise NotJson(f"the answer is no list of {kind}")
            yield page
            position = page["metadata"].get("continue") or ""
            if not position:
                return

    async def watch(
        self,
        kind: str,
        namespace: str,
        *,
        selectors: dict[str, str],
        version: str,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[tuple[str, Body]]:
        """Yield (type, object) of every change after a resourceVersion, until the API server ends the watch.

        `opened` is called when the API server has accepted it. Bookmarks are among the changes. Raises TimeoutError if
        the API server is silent for SILENCE_SECONDS, and NotJson at a line that no API server sends.
        """
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", version)]
        query += [("timeoutSeconds", str(WATCH_SECONDS)), *((name, text) for name, text in selectors.items() if text)]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_SECONDS, sock_read=SILENCE_SECONDS)
        response = await self._request("GET", _path(kind, namespace), None, query, verb="watch", limit=timeout)
        opened()
        rest = b""
        try:
            async for chunk in response.response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield _change(line)
            if rest:
                raise NotJson("the watch ended within a line")
        finally:
            response.response.close()

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str, force: bool = False) -> Body:
        """Delete the object with that UID, its dependents in the background. `is_gone` if it does not exist.

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
        body: Body | list[Body] | None,
        query: list[tuple[str, str]],
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        verb: str = "",
    ) -> Body:
        response = await self._request(
            method, path, body, query, content_type=content_type, accept=accept, verb=verb or VERBS[method]
        )
        text: bytes = await response.read()
        return _decoded(text) if text else {}

    async def _request(
        self,
        method: str,
        path: str,
        body: Body | list[Body] | None,
        query: list[tuple[str, str]],
        *,
        verb: str,
        content_type: str = "application/json",
        accept: str = "application/json",
        limit: Any = TIMEOUT_SECONDS,
    ) -> Any:
        """Return the response, of which only the head has been read. `limit`: its timeout. Raises ApiException."""
        # The client's own param_serialize copies the body, which takes longer than the rest of a request.
        headers = {**self._api.default_headers, "Accept": accept, "Content-Type": content_type, **UNCOMPRESSED}
        await self._api.update_params_for_auth(headers, query, ["BearerToken"], path, method, body)
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        response = await self._api.call_api(method, url, headers, body, _request_timeout=limit)
        self._count(verb, _kind(path), response.status)
        if not 200 <= response.status < 300:
            text = (await response.read()).decode(errors="replace")  # type: ignore[no-untyped-call]
            raise ApiException.from_response(http_resp=response, body=text, data=None)
        self._compare_clocks(response.response.headers.get("Date"))  # an error may be that of a proxy
        return response


def _change(line: bytes) -> tuple[str, Body]:
    """Return type and object of a line of a watch. Raises NotJson."""
    event = _decoded(line)
    change, body = event.get("type"), event.get("object")
    if not isinstance(body, dict) or (change != "ERROR" and "metadata" not in body):
        raise NotJson(f"the line is no change of an object: {line[:SHOWN_BYTES].decode(errors='replace')!r}")
    return str(change), body


def _kind(path: str) -> str:
    """Return the plural in an API path."""
    parts = path.split("/")[3 if path.startswith("/api/") else 4 :]
    return parts[2] if parts[0] == "namespaces" else parts[0]


def _path(kind: str, namespace: str, name: str = "") -> str:
    root, plural = KINDS[kind]
    where = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"/{root}{where}/{plural}" + (f"/{quote(name)}" if name else "")
