"""A real API server on loopback: etcd and kube-apiserver without controllers, scheduler and nodes.

For tests and benchmarks that play the rest of the cluster themselves. The first start builds it, which takes minutes
and needs root if etcd is missing; later ones take seconds and need no root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubernetes.aio import client as aio
from kubernetes.aio import config as aio_config

from rstar2_operator.client import KubeClient, connection
from rstar2_train.api.crd import build_crd
from rstar2_train.utils.ports import free_ports
from rstar2_train.utils.supervisor import die_with_parent
from tests.kube_node import binaries, requirements

TOKEN = "loopback"
START_SECONDS = 300.0
_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without the machine's certificates, whose load takes longer than a request."""
_CONTEXT.check_hostname, _CONTEXT.verify_mode = False, ssl.CERT_NONE


class KubeApiserver:
    """Context manager of one API server, with the project's CRD."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rstar2-apiserver-"))
        self.kubeconfig = self.folder / "kubeconfig"
        self.address = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        """Provide the operator's client of this server."""
        configuration = aio.Configuration()
        await aio_config.load_kube_config(str(self.kubeconfig), client_configuration=configuration)
        async with connection(configuration) as api:
            yield KubeClient(api)

    def _start(self) -> None:
        requirements.install(requirements.ETCD)
        program = binaries.ensure_binary(binaries.find_binary("kube-apiserver"))
        peer, client, port = free_ports(3)
        etcd, self.address = f"http://127.0.0.1:{client}", f"https://127.0.0.1:{port}"
        key = rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self.folder / "accounts.key").write_bytes(key)
        (self.folder / "tokens.csv").write_text(f"{TOKEN},tests,tests,system:masters\n")
        self.kubeconfig.write_text(json.dumps(_kubeconfig(self.address)))
        self._run(
            "etcd",
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=error",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            "--quota-backend-bytes=4294967296",
        )
        self._run(
            "kube-apiserver",
            program,
            "--bind-address=127.0.0.1",
            "--advertise-address=192.0.2.1",  # loopback is rejected; no object of this server uses it
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            f"--cert-dir={self.folder}",
            f"--etcd-servers={etcd}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--service-account-key-file={self.folder / 'accounts.key'}",
            f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount,RuntimeClass,Priority",  # tests play the controllers
            "--enable-priority-and-fairness=false",
            "--profiling=false",
        )
        self._wait(lambda: self.request("GET", "/readyz", raw=True) == b"ok")
        self.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", build_crd())
        self._wait(lambda: "items" in self.request("GET", "/apis/rstar2.dev/v1alpha1/agenticrljobs"))
        gvisor = {"metadata": {"name": "gvisor"}, "handler": "runsc"}
        self.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", gvisor)

    def _run(self, name: str, *command: str) -> None:
        log = (self.folder / f"{name}.log").open("wb")
        # Its own session: Ctrl-C reaches the caller first, which stops the server.
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, preexec_fn=die_with_parent)
        self._processes.append(process)

    def _wait(self, ready: Any) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if ready():
                    return
            except (urllib.error.URLError, OSError):
                pass
            if time.monotonic() > deadline or any(each.poll() is not None for each in self._processes):
                logs = "".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
                raise RuntimeError(f"the API server did not start: {logs}")
            time.sleep(0.2)

    def request(
        self, method: str, path: str, body: Any = None, *, raw: bool = False, media: str = "application/json"
    ) -> Any:
        """Send a request. Return its JSON, or bytes with `raw`. `media`: type of the body, such as of a patch.

        Raises urllib.error.HTTPError.
        """
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": media}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, context=_CONTEXT, timeout=120) as response:
            answer: bytes = response.read()
        return answer if raw else json.loads(answer)

    def rejection(self, method: str, path: str, body: Any) -> str:
        """Send a request. Return the server's message if it rejects the body; empty if it accepts it."""
        try:
            self.request(method, path, body)
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["message"])
        return ""

    def _stop(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _kubeconfig(server: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "clusters": [{"name": "tests", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "tests", "user": {"token": TOKEN}}],
    }
