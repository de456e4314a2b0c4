"""The server of a bucket, and obstore's client for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from rstar2_train.storage.retries import Retries

CONNECT_SECONDS, REQUEST_SECONDS = 10, 300
"""Timeouts of a request: to connect, in all."""
REFUSED_ADDRESS = "127.0.0.1:0"
"""Address at which no server can listen: the proxy for all hosts but that of the bucket."""
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_KEY = "AWS_ACCESS_KEY_ID"
"""Variable of a key. Without it the client asks other servers for credentials."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The server of a bucket. Default: the vendor's own, or the one of the environment."""

    url: str | None = None
    """http:// or https:// address of an S3-compatible server, of GCS or of Azure."""
    region: str | None = None
    """Region of S3. Default: that of the environment, else us-east-1."""
    virtual_host: bool = False
    """S3: whether the bucket is part of the host name. Default: part of the path."""
    authorities: Path | None = None
    """PEM file of certificate authorities that are trusted besides the system's."""
    silent_seconds: float = 30
    """Seconds without a byte after which a request counts as failed."""
    part_bytes: int = 16 * 2**20
    """Least size of the parts of an upload."""
    retries: Retries = field(default_factory=Retries)
    """Bounds of the repetition of each operation."""


def open_client(scheme: str, bucket: str, prefix: str, endpoint: Endpoint, url: str) -> Any:
    """Return the client. Its settings replace the variables of the environment, also those of other programs."""
    is_plain = url.startswith("http://")
    client: dict[str, Any] = {
        "allow_http": is_plain,
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=endpoint.silent_seconds),
        "timeout": timedelta(seconds=REQUEST_SECONDS),
    }
    if endpoint.authorities is not None:
        client["root_certificate"] = endpoint.authorities.read_bytes()
    patience = min(endpoint.retries.patience, 180.0)  # longer, signatures expire: Retries signs again
    common: dict[str, Any] = {
        "prefix": prefix or None,
        "client_options": client,
        # The parts of an upload are repeated one by one.
        "retry_config": {
            "max_retries": 10,
            "backoff": {
                "init_backoff": timedelta(seconds=endpoint.retries.first_delay),
                "max_backoff": timedelta(seconds=min(10.0, patience)),
            },
            "retry_timeout": timedelta(seconds=patience),
        },
    }
    if scheme == "s3":
        # The digest of a body in its signature detects damage on the line. TLS detects it without that work.
        settings: Any = {"virtual_hosted_style_request": endpoint.virtual_host, "unsigned_payload": not is_plain}
        if url:
            settings["aws_endpoint_url_s3"] = _with_bucket(url, bucket) if endpoint.virtual_host else url
            client |= _only_host_of(url, os.environ)
        if endpoint.region:
            settings["region"] = endpoint.region
        return S3Store(bucket, config=settings, **common)
    if scheme == "gs":
        return GCSStore(bucket, config={"base_url": url} if url else {}, **common)
    return AzureStore(bucket, config={"endpoint": url} if url else {}, **common)


def _only_host_of(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which the client follows no redirect to another host, which would get the request.

    obstore cannot switch redirects off. None behind a proxy, and for an identity, whose servers are other hosts.
    """
    if _KEY not in environ or any(environ.get(name) or environ.get(name.lower()) for name in _PROXIES):
        return {}
    return {"proxy_url": f"http://{REFUSED_ADDRESS}", "proxy_excludes": urlsplit(url).hostname or ""}


def _with_bucket(url: str, bucket: str) -> str:
    """Return the address of a bucket in its own host: obstore expects it complete."""
    scheme, _, host = url.partition("://")
    return f"{scheme}://{bucket}.{host}"
