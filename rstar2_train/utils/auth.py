"""Who may use a server that runs code: where its token comes from, and which addresses need one.

Used by the judge's API and by whoever serves or asks beside it; needs nothing that is not in every image.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from pathlib import Path


def secret(name: str) -> str | None:
    """A secret from the environment variable `name`, or from the file that `name`_FILE names."""
    file = os.environ.get(f"{name}_FILE")
    if file:
        return Path(file).read_text().strip()
    return os.environ.get(name) or None


def bears(header: bytes, token: str) -> bool:
    """Whether an Authorization header's value is `Bearer` (in any spelling) and the token; takes as long either way."""
    scheme, _, given = header.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given, token.encode())


def check_bind(host: str, *, token: str | None, insecure: bool, variable: str = "RSTAR2_JUDGE_TOKEN") -> None:
    """Raises ValueError for an address that others reach, with no token asked of them.

    `variable`: of the environment, from which the token comes.
    """
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback and not token and not insecure:
        raise ValueError(
            f"--host {host} would let anyone who reaches this machine run code on it. Give a token in "
            f"{variable} or {variable}_FILE, stay on 127.0.0.1, or pass --insecure."
        )
