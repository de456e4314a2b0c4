"""A mutating admission webhook that adds a container to pods, as meshes and agents do; it ignores every opt-out."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kube_node.certificates import Authority
from tests.kube_node.cluster import Cluster

NAME = "injector.tests.rstar2.dev"
CONTAINER = "aaa-proxy"
"""Sorts before every container of the project: kubelets sort the statuses of containers by name."""


def container(image: str) -> dict[str, Any]:
    """Return a container that never ends by itself, and ignores SIGTERM."""
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


class _Handler(BaseHTTPRequestHandler):
    patch: bytes

    def do_POST(self) -> None:  # the name that http.server calls
        """Answer an AdmissionReview with the patch."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(self.patch).decode(),
        }
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextlib.contextmanager
def injected(cluster: Cluster, namespace: str, folder: Path, *, image: str) -> Iterator[None]:
    """Inject the container into each new pod of the jobs of a namespace. The webhook runs on this machine."""
    address = cluster.node_layout().host_address
    authority = Authority(folder / "pki")
    authority.issue("webhook", "webhook", addresses=(address,))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.folder / "webhook.crt", authority.folder / "webhook.key")
    patch = json.dumps([{"op": "add", "path": "/spec/containers/-", "value": container(image)}]).encode()
    server = ThreadingHTTPServer((address, 0), type("Handler", (_Handler,), {"patch": patch}))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    bundle = base64.b64encode((authority.folder / "ca.crt").read_bytes()).decode()
    hook = {
        "name": NAME,
        "clientConfig": {"url": f"https://{address}:{server.server_address[1]}/", "caBundle": bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchExpressions": [{"key": "rstar2.dev/job", "operator": "Exists"}]},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    try:
        cluster.apply([{**kind, "metadata": {"name": NAME}, "webhooks": [hook]}])
        yield
    finally:
        cluster.kubectl("delete", "mutatingwebhookconfiguration", NAME, "--ignore-not-found")
        server.shutdown()
        server.server_close()
