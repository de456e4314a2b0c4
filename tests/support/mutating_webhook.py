"""A mutating admission webhook on this machine: it applies a JSON patch to each new object that it selects."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.kube_node.certificates import Authority

NAME = "webhook.tests.rstar2.dev"
GROUPS = {"pods": "", "configmaps": "", "jobs": "batch", "deployments": "apps"}
"""API group by resource."""

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    """The change of one webhook."""

    resource: str
    """Plural name of the changed kind."""
    patch: list[Body]
    """Operations of a JSON patch (RFC 6902)."""
    selector: Body
    """Label selector of the changed objects."""


class _Handler(BaseHTTPRequestHandler):
    patches: Mapping[str, bytes]
    """URL path -> JSON patch."""

    def do_POST(self) -> None:  # the name that http.server calls
        """Answer an AdmissionReview with the patch."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(self.patches[self.path.partition("?")[0]]).decode(),
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
def mutating_webhook(
    folder: Path, address: str, mutations: Mapping[str, Mutation], *, namespace: str
) -> Iterator[Body]:
    """Serve the mutations, by name. Yields the MutatingWebhookConfiguration, which the caller creates.

    `address`: of this machine, as the API server reaches it; `folder`: for the certificates.
    """
    authority = Authority(folder / "pki")
    authority.issue("webhook", "webhook", addresses=(address,))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.folder / "webhook.crt", authority.folder / "webhook.key")
    patches = {f"/{name}": json.dumps(mutation.patch).encode() for name, mutation in mutations.items()}
    server = ThreadingHTTPServer((address, 0), type("Handler", (_Handler,), {"patches": patches}))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = {"caBundle": base64.b64encode((authority.folder / "ca.crt").read_bytes()).decode()}
    url = f"https://{address}:{server.server_address[1]}"
    hooks = [
        {**_hook(name, mutation, namespace), "clientConfig": {**client, "url": f"{url}/{name}"}}
        for name, mutation in mutations.items()
    ]
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    try:
        yield {**kind, "metadata": {"name": NAME}, "webhooks": hooks}
    finally:
        server.shutdown()
        server.server_close()


def _hook(name: str, mutation: Mutation, namespace: str) -> Body:
    group, resource = GROUPS[mutation.resource], mutation.resource
    return {
        "name": f"{name}.{NAME}",
        "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": mutation.selector,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
