"""An HTTPS server for the only request of pods to a Kubernetes API server: a merge patch of a ConfigMap.

It accepts or rejects patches on request, and it can be stopped. tests/cluster uses a real API server.
"""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from pathlib import Path
from types import TracebackType

from tests.support.certificate import write_certificate

TOKEN = "the-account's-token"
ADDRESS = "127.0.0.1"


class FakeConfigMapServer:
    """The server, as a context manager. `env` and `account` are the variables and files that a kubelet provides."""

    def __init__(self, folder: Path, *, name: str) -> None:
        self.account = folder / "account"
        self.account.mkdir()
        self.data: dict[str, str] = {}
        self.writes: list[dict[str, str]] = []
        self.refusals = 0
        """Number of next requests that get a 503."""
        write_certificate(self.account / "ca.crt", folder / "server.pem")
        (self.account / "token").write_text(TOKEN)
        self._path = f"/api/v1/namespaces/team/configmaps/{name}"
        self._server = http.server.ThreadingHTTPServer((ADDRESS, 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.env = {
            "KUBERNETES_SERVICE_HOST": ADDRESS,
            "KUBERNETES_SERVICE_PORT": str(self._server.server_address[1]),
            "POD_NAMESPACE": "team",
        }

    def __enter__(self) -> FakeConfigMapServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._respond(*self._process(body))

            def _process(self, body: dict) -> tuple[int, dict]:
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    return 401, {"message": "Unauthorized"}
                if self.path != server._path:
                    return 403, {"message": f"cannot patch {self.path}"}
                if self.headers["Content-Type"] != "application/merge-patch+json" or set(body) != {"data"}:
                    return 415, {"message": "not a merge patch of data"}
                if server.refusals:
                    server.refusals -= 1
                    return 503, {"message": "overloaded"}
                server.data |= body["data"]
                server.writes.append(body["data"])
                return 200, {"data": server.data}

            def _respond(self, status: int, body: dict) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                return

        return Handler
