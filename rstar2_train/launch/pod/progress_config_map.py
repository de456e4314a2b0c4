"""Tells the operator what happens: keys of the job's progress ConfigMap, by the pod's own service account.

Storage has everything first; this is how the rest of the cluster hears of it. An API server that is away is waited
for by the caller, and never stops training. A client of our own: one PATCH needs no library of a thousand models.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Self

import httpx

from rstar2_train.utils.dns import join_address

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts the account's token (renewed every hour: read for each request) and the cluster's CA."""
TIMEOUT_SECONDS = 10.0


class ProgressNotWritten(Exception):
    """The API server did not take it: away, or refusing. The message is for the log."""


class ProgressConfigMap:
    """One ConfigMap. Use as `async with`."""

    def __init__(self, name: str, *, namespace: str, server: str, account: Path = ACCOUNT) -> None:
        """`server`: base URL of the API server."""
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        self._token = account / "token"
        self._client = httpx.AsyncClient(
            base_url=server,
            verify=ssl.create_default_context(cafile=str(account / "ca.crt")),
            timeout=TIMEOUT_SECONDS,
            trust_env=False,  # a site's proxy is for the world outside
        )

    @classmethod
    def of_pod(cls, name: str, *, account: Path = ACCOUNT) -> ProgressConfigMap:
        """The one in this pod's namespace. Raises ValueError where this is no pod."""
        try:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            namespace = os.environ["POD_NAMESPACE"]
            server = f"https://{join_address(host, int(port))}"
            return cls(name, namespace=namespace, server=server, account=account)
        except (KeyError, OSError) as error:
            raise ValueError(f"--progress needs a pod with a service account: {error} is missing") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def put(self, data: dict[str, str]) -> None:
        """Set keys, and leave the others as they are. Raises ProgressNotWritten."""
        try:
            headers = {
                "Authorization": f"Bearer {self._token.read_text(encoding='utf-8').strip()}",
                "Content-Type": "application/merge-patch+json",
            }
            answer = await self._client.patch(self._path, json={"data": data}, headers=headers)
        except (httpx.HTTPError, OSError) as error:
            raise ProgressNotWritten(f"{type(error).__name__}: {error}") from error
        if answer.status_code != 200:
            raise ProgressNotWritten(f"{answer.status_code}: {answer.text[:300]}")
