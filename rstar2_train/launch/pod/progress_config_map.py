"""Client of the job's progress ConfigMap, which the operator watches; uses the pod's service account.

The storage has everything first. An unreachable API server never stops training; the caller retries. One PATCH request
does not need a Kubernetes client library.
"""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Self

import aiohttp

from rstar2_train.utils.dns import join_address

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder with the account's token and the cluster's CA. The kubelet renews the token, so each request reads it."""
TIMEOUT = aiohttp.ClientTimeout(total=10)


DELETED = (401, 403, 404)
"""HTTP statuses if the ConfigMap, or the rights to write it, were deleted with the job."""


class ProgressNotWritten(Exception):
    """The API server is unreachable or rejected the request. The message is for the log."""

    def __init__(self, message: str, *, deleted: bool = False) -> None:
        super().__init__(message)
        self.deleted = deleted
        """Whether the ConfigMap, or the rights to write it, seem to be deleted."""


class ProgressConfigMap:
    """The ConfigMap. An async context manager."""

    def __init__(self, name: str, *, namespace: str, server: str, account: Path = ACCOUNT) -> None:
        """`server`: base URL of the API server."""
        self._url = f"{server}/api/v1/namespaces/{namespace}/configmaps/{name}"
        self._token = account / "token"
        self._ssl = ssl.create_default_context(cafile=str(account / "ca.crt"))

    @classmethod
    def from_pod(cls, name: str, *, account: Path = ACCOUNT) -> ProgressConfigMap:
        """Return the ConfigMap `name` in this pod's namespace. Raises ValueError outside a pod."""
        try:
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            namespace = os.environ["POD_NAMESPACE"]
            server = f"https://{join_address(host, int(port))}"
            return cls(name, namespace=namespace, server=server, account=account)
        except (KeyError, OSError) as error:
            raise ValueError(f"--progress requires a pod with a service account: {error} is missing") from error

    async def __aenter__(self) -> Self:
        # Without the environment's proxy: the API server is inside the cluster.
        self._session = aiohttp.ClientSession(timeout=TIMEOUT, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def put(self, data: dict[str, str]) -> None:
        """Set keys; other keys are not changed. Raises ProgressNotWritten."""
        try:
            headers = {
                "Authorization": f"Bearer {self._token.read_text(encoding='utf-8').strip()}",
                "Content-Type": "application/merge-patch+json",
            }
            body = json.dumps({"data": data})
            async with self._session.patch(self._url, data=body, headers=headers, ssl=self._ssl) as response:
                if response.status != 200:
                    message = f"{response.status}: {(await response.text())[:300]}"
                    raise ProgressNotWritten(message, deleted=response.status in DELETED)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProgressNotWritten(f"{type(error).__name__}: {error}") from error
