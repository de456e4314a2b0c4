"""Identities of pods: the client asks a service of the vendor for credentials, and again before they expire.

A server of this machine gives the answers of the vendors' documents. No vendor was reached.
"""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import urlsplit

import pytest

from rstar2_train.storage.bucket import Bucket
from rstar2_train.storage.endpoint import Endpoint
from rstar2_train.storage.store import ObjectMissing
from tests.support.certificate import write_certificate
from tests.support.cloud_server import Answer, CloudHandler, Query, cloud_server
from tests.support.s3_server import CREDENTIALS as KEYS


class Identity(NamedTuple):
    """A way of a pod to credentials."""

    scheme: str
    variables: dict[str, str]
    """Variables that the cluster sets. {tls}, {plain}: hosts of the service; {token}: file of the pod's token."""
    path: str
    """Part of the path of the request for credentials."""
    answer: str
    """Answer to it; {expires}: time of the end; {seconds}: until then."""
    header: str
    """Header with the credentials, in each request to the bucket."""


LIFETIME_SECONDS = 60
"""Of credentials. The client renews them when less than five minutes are left."""
_STS = (
    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>id</AccessKeyId>"
    "<SecretAccessKey>key</SecretAccessKey><SessionToken>short-lived</SessionToken><Expiration>{expires}</Expiration>"
    "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
)
_POD = '{{"AccessKeyId": "id", "SecretAccessKey": "key", "Token": "short-lived", "Expiration": "{expires}"}}'
_BEARER = '{{"access_token": "short-lived", "expires_in": {seconds}, "token_type": "Bearer"}}'
IDENTITIES = {
    "IRSA": Identity(
        "s3",
        {
            "AWS_WEB_IDENTITY_TOKEN_FILE": "{token}",
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
            "AWS_ENDPOINT_URL_STS": "https://{tls}",
        },
        "Action=AssumeRoleWithWebIdentity",
        _STS,
        "X-Amz-Security-Token",
    ),
    "EKS Pod Identity": Identity(
        "s3",
        {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://{plain}/v1/credentials",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "{token}",
        },
        "/v1/credentials",
        _POD,
        "X-Amz-Security-Token",
    ),
    "GKE": Identity("gs", {"GCE_METADATA_HOST": "{plain}"}, "/default/token", _BEARER, "Authorization"),
    "Azure": Identity(
        "az",
        {
            "AZURE_CLIENT_ID": "client",
            "AZURE_TENANT_ID": "tenant",
            "AZURE_FEDERATED_TOKEN_FILE": "{token}",
            "AZURE_AUTHORITY_HOST": "https://{tls}/",
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
        },
        "/tenant/oauth2/v2.0/token",
        _BEARER,
        "Authorization",
    ),
}


class _Service(CloudHandler):
    """A service of credentials, and a bucket without objects."""

    identity: ClassVar[Identity]
    requests: ClassVar[list[str]]
    """Header with the credentials of each request; the path of a request for them."""

    def answer(self, key: str, query: Query, body: bytes) -> Answer:
        if self.identity.path not in self.path:
            self.requests.append(self.headers[self.identity.header])
            return Answer(404)
        self.requests.append("credentials")
        expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=LIFETIME_SECONDS)
        text = self.identity.answer.format(expires=f"{expires:%Y-%m-%dT%H:%M:%SZ}", seconds=LIFETIME_SECONDS)
        return Answer(200, text.encode())


@pytest.fixture
def secure(tmp_path: Path) -> ssl.SSLContext:
    """Return the settings of a server with a certificate, whose authority is `ca.crt`."""
    write_certificate(tmp_path / "ca.crt", tmp_path / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    return context


@pytest.mark.parametrize("name", IDENTITIES)
def test_identity_renews_its_credentials(
    name: str, secure: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod without keys gets credentials by its identity, and others before they expire."""
    identity, requests = IDENTITIES[name], list[str]()
    for variable in (*KEYS, "GOOGLE_BEARER_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(variable)
    (tmp_path / "token").write_text("token-of-the-pod")
    kind = type("Service", (_Service,), {"identity": identity, "requests": requests})
    with cloud_server(kind) as plain, cloud_server(kind, secure) as tls:
        hosts = {"plain": urlsplit(plain).netloc, "tls": urlsplit(tls).netloc, "token": tmp_path / "token"}
        for variable, value in identity.variables.items():
            monkeypatch.setenv(variable, value.format(**hosts))
        store = Bucket(identity.scheme, "bucket", endpoint=Endpoint(url=plain, authorities=tmp_path / "ca.crt"))
        for _ in range(10_000):  # the client uses expiring credentials for a moment
            with pytest.raises(ObjectMissing):
                store.read("a")
            if requests.count("credentials") == 2:
                break
    use = "Bearer short-lived" if identity.header == "Authorization" else "short-lived"
    assert requests[:2] == ["credentials", use] and requests[-2:] == ["credentials", use]
    assert set(requests) == {"credentials", use}
