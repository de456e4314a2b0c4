"""A source of external metrics for the autoscaler, such as prometheus-adapter is, with one number that a test sets.

It registers with the API server as the group external.metrics.k8s.io, so the autoscaler's requests pass the real
aggregation layer. Its Service is of type ExternalName, because nothing routes cluster addresses on a loopback server.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rstar2_operator.observed import timestamp
from rstar2_train.utils.ports import free_ports
from tests.kube_node.certificates import Authority
from tests.support.kube_apiserver import KubeApiserver

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
API = f"/apis/{GROUP}/{VERSION}"
SERVICE = {"namespace": "default", "name": "metrics"}


class ExternalMetric:
    """The value of one metric, and the requests for it."""

    def __init__(self, namespace: str, name: str, value: float | None) -> None:
        self.path = f"{API}/namespaces/{namespace}/{name}"
        self.name = name
        self.value = value
        """None: the query has no result."""
        self.selectors: list[str] = []
        """The label selector of each request."""

    def answer(self, target: str) -> dict[str, Any] | None:
        """Return the answer to a request; None if the path is unknown."""
        url = urlsplit(target)
        if url.path == API:
            kind = {"name": self.name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList"}
            resources = [{**kind, "verbs": ["get"]}]
            return {"kind": "APIResourceList", "groupVersion": f"{GROUP}/{VERSION}", "resources": resources}
        if url.path != self.path:
            return None
        self.selectors.append(parse_qs(url.query)["labelSelector"][0])
        now, values = timestamp(time.time()), [] if self.value is None else [f"{1000 * self.value:.0f}m"]
        items = [{"metricName": self.name, "metricLabels": {}, "timestamp": now, "value": value} for value in values]
        return {"kind": "ExternalMetricValueList", "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "items": items}


@contextlib.contextmanager
def external_metric(api: KubeApiserver, folder: Path, metric: ExternalMetric) -> Iterator[None]:
    """Serve the metric and register it. `folder`: for its certificates."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = metric.answer(self.path)
            body = json.dumps(answer or {}).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    (port,) = free_ports(1)
    authority = Authority(folder / "pki")
    authority.issue("metrics", "metrics", addresses=(f"{SERVICE['name']}.{SERVICE['namespace']}.svc",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.folder / "metrics.crt", authority.folder / "metrics.key")
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            _register(api, port, (authority.folder / "ca.crt").read_bytes())
            yield
        finally:
            server.shutdown()


def _register(api: KubeApiserver, port: int, authority: bytes) -> None:
    service = {"type": "ExternalName", "externalName": "localhost"}
    body = {"metadata": {"name": SERVICE["name"]}, "spec": service}
    api.request("POST", f"/api/v1/namespaces/{SERVICE['namespace']}/services", body)
    spec = {
        "group": GROUP,
        "version": VERSION,
        "service": {**SERVICE, "port": port},
        "caBundle": base64.b64encode(authority).decode(),
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    body = {"metadata": {"name": f"{VERSION}.{GROUP}"}, "spec": spec}
    api.request("POST", "/apis/apiregistration.k8s.io/v1/apiservices", body)
