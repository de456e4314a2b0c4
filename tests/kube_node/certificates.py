"""The certificate authority of a cluster, one certificate per component, and kubeconfigs that contain them.

Each boot creates new ones in the cluster's folder, in milliseconds. Kubernetes binds its roles to the names in the
certificates: `system:node:...` in `system:nodes`, `system:kube-scheduler` and so on.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.kube_node.layout import API_SERVICE, DOMAIN, NODE, Layout

LIFETIME = datetime.timedelta(days=30)

CLIENTS = {  # file name -> (common name, organisation)
    "admin": ("rstar2-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "apiserver-kubelet": ("rstar2-apiserver", "system:masters"),
}


def pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    # The old format: the API server derives a public key from it, which it cannot do from PKCS 8.
    return key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, plain)


class Authority:
    """A certificate authority that writes keys and signed certificates into one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rstar2 test cluster")])
        builder = self.builder(self.name, self.key.public_key())
        self.certificate = builder.add_extension(x509.BasicConstraints(True, None), True).sign(
            self.key, hashes.SHA256()
        )
        self.write("ca", self.key, self.certificate)

    def builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + LIFETIME)

    def issue(self, file: str, common_name: str, organisation: str = "", addresses: tuple[str, ...] = ()) -> None:
        """Sign and write a certificate: for a server if `addresses` (names or IPs) are given, else for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organisation:
            parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
        usage = [ExtendedKeyUsageOID.SERVER_AUTH if addresses else ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = self.builder(x509.Name(parts), key.public_key()).add_extension(x509.ExtendedKeyUsage(usage), False)
        if addresses:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([general_name(item) for item in addresses]), False
            )
        self.write(file, key, builder.sign(self.key, hashes.SHA256()))

    def write(self, file: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        (self.folder / f"{file}.key").write_bytes(pem_key(key))
        (self.folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def kubeconfig(folder: Path, client: str, server: str) -> str:
    """Return a kubeconfig (JSON is YAML) that contains the client's certificate, so that a copy of it works."""

    def data(file: str) -> str:
        return base64.b64encode((folder / file).read_bytes()).decode()

    user = {"client-certificate-data": data(f"{client}.crt"), "client-key-data": data(f"{client}.key")}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "rstar2", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}
            ],
            "users": [{"name": client, "user": user}],
            "contexts": [{"name": "rstar2", "context": {"cluster": "rstar2", "user": client}}],
            "current-context": "rstar2",
        },
        indent=1,
    )


def write_all(layout: Layout) -> None:
    """Write all keys, certificates and kubeconfigs of a cluster."""
    folder = layout.folder / "pki"
    authority = Authority(folder)
    service = [f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc", f".default.svc.{DOMAIN}")]
    api = (layout.node_address, API_SERVICE, "127.0.0.1", "localhost", *service)
    authority.issue("apiserver", "kube-apiserver", addresses=api)
    authority.issue("kubelet-server", NODE, addresses=(NODE, layout.node_address))
    (folder / "service-accounts.key").write_bytes(pem_key(ec.generate_private_key(ec.SECP256R1())))
    for client, (name, organisation) in CLIENTS.items():
        authority.issue(client, name, organisation)
        (layout.folder / f"{client}.kubeconfig").write_text(kubeconfig(folder, client, layout.server))
        (layout.folder / f"{client}.kubeconfig").chmod(0o600)
