"""A certificate for servers of tests on this machine."""

from __future__ import annotations

from pathlib import Path

from rstar2_train.utils.ports import LOOPBACK
from tests.kube_node.certificates import Authority


def write_certificate(authority: Path, server: Path) -> None:
    """Write the certificate of a new authority, and one of LOOPBACK with its key for the server. Both are PEM files."""
    issuer = Authority(server.parent / "pki")
    issuer.issue("server", LOOPBACK, addresses=(LOOPBACK,))
    authority.write_bytes((issuer.folder / "ca.crt").read_bytes())
    server.write_bytes(b"".join((issuer.folder / f"server.{kind}").read_bytes() for kind in ("crt", "key")))
