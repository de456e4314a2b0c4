"""The operations of a store, on a real S3 server and on a folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from rstar2_train.storage.bucket import Bucket, part_bytes
from rstar2_train.storage.endpoint import Endpoint
from rstar2_train.storage.retries import Retries
from rstar2_train.storage.store import (
    AccessDenied,
    CorruptObject,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StorageRejected,
    StorageUnavailable,
)
from tests.integration.storage.conftest import PART_BYTES, endpoint, opened
from tests.support.certificate import write_certificate
from tests.support.s3_proxy import S3Proxy
from tests.support.s3_server import S3Server, s3_server


def test_store_object_is_created_once(store: ObjectStore) -> None:
    """The second creation fails, unless it has the same body: then its own first answer may have been lost."""
    etag = store.put_if_absent("a/b.json", b"one")
    assert store.put_if_absent("a/b.json", b"one") == etag
    with pytest.raises(ObjectExists, match=r"a/b\.json"):
        store.put_if_absent("a/b.json", b"two")
    content = store.read("a/b.json")
    assert (content.body, content.etag) == (b"one", etag)


def test_store_object_is_replaced_by_etag(store: ObjectStore) -> None:
    """Only the current version can be replaced; a replacement with the same body is a repetition."""
    first = store.put_if_absent("index", b"1")
    second = store.put_if_unchanged("index", b"2", first)
    assert second != first and store.put_if_unchanged("index", b"2", first) == second
    with pytest.raises(ObjectChanged):
        store.put_if_unchanged("index", b"3", first)
    with pytest.raises(ObjectChanged):
        store.put_if_unchanged("absent", b"3", first)
    assert store.read("index").body == b"2"


def test_store_upload_in_parts_reads_in_ranges(store: ObjectStore, tmp_path: Path) -> None:
    """A file of several parts arrives complete; ranges, sizes and listings agree with it."""
    body = bytes(range(256)) * 4096 * 6
    assert len(body) > PART_BYTES
    (tmp_path / "large").write_bytes(body)
    store.upload("large", tmp_path / "large")
    store.put_if_absent("empty", b"")
    assert store.stat("large").size == len(body)
    assert store.read("large", start=1000, end=1010).body == body[1000:1010]
    assert store.read("large", start=len(body) - 5).body == body[-5:]
    assert store.read("large").body == body and store.read("empty").body == b""
    assert [(each.name, each.size) for each in store.list()] == [("empty", 0), ("large", len(body))]
    with pytest.raises(CorruptObject, match="allowed: 100"):
        store.read("large", limit=100)


def test_store_read_of_another_version_fails(store: ObjectStore) -> None:
    """A read of one version never returns bytes of another one."""
    etag = store.put_if_absent("a", b"1")
    assert store.read("a", etag=etag).body == b"1"
    store.put_if_unchanged("a", b"2", etag)
    with pytest.raises(ObjectChanged):
        store.read("a", etag=etag)


def test_store_deleted_object_is_missing(store: ObjectStore) -> None:
    """A deletion can be repeated."""
    store.put_if_absent("a/b", b"1")
    store.delete("a/b")
    store.delete("a/b")
    for operation in (store.stat, store.read):
        with pytest.raises(ObjectMissing, match="a/b"):
            operation("a/b")


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", "a//b", "", "a/./b", "a\nb", "a b", "ä", "x" * 1000])
def test_store_invalid_name_is_rejected(name: str, store: ObjectStore) -> None:
    """No name leads out of the prefix, and every store takes the same names."""
    with pytest.raises(CorruptObject, match="not a valid name"):
        store.put_if_absent(name, b"1")
    with pytest.raises(CorruptObject, match="not a valid name"):
        store.read(name)


def test_bucket_wrong_secret_is_denied(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected key is not repeated; the message has the server's own words."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(AccessDenied, match="SignatureDoesNotMatch"):
        opened(server.url, bucket).read("a")


def test_bucket_that_does_not_exist_is_missing(server: S3Server) -> None:
    """A missing bucket is named."""
    with pytest.raises(ObjectMissing, match=r"s3://no-such-bucket/team/job/a.*NoSuchBucket"):
        opened(server.url, "no-such-bucket").put_if_absent("a", b"1")


def test_bucket_silent_server_fails_within_the_bound(server: S3Server, proxy: S3Proxy, bucket: str) -> None:
    """A server that fails longer than the patience is an error with its own words, after several tries."""
    proxy.before = lambda request: "503"
    slept: list[float] = []  # the clock moves with the delays alone, as if requests took no time
    retries = Retries(patience=0.5, first_delay=0.01, clock=lambda: sum(slept), sleep=slept.append)
    store = Bucket("s3", bucket, "a", endpoint=replace(endpoint(proxy.url), retries=retries), environ={})
    with pytest.raises(StorageUnavailable, match=r"503.*SlowDown.*repeated for"):
        store.read("a")
    assert len(proxy.requests) > 2


@pytest.mark.parametrize(
    "url", ["ftp://s3", "http://user:secret@s3", "https://s3/path", "https://s3?x=1", "s3.example"]
)
def test_bucket_invalid_endpoint_is_rejected(url: str) -> None:
    """The error names the allowed form; credentials never stand in an address."""
    with pytest.raises(StorageRejected, match="must be an address such as") as caught:
        Bucket("s3", "bucket", endpoint=Endpoint(url=url))
    assert "secret" not in str(caught.value)


def test_bucket_with_own_authority(tmp_path: Path, server: S3Server) -> None:
    """TLS with an authority of the site: trusted if its file is set, else rejected by name, without retries."""
    certificate, pair = tmp_path / "ca.crt", tmp_path / "server.pem"
    write_certificate(certificate, pair)
    with s3_server(tmp_path / "tls", "--cert", str(pair), "--key", str(pair), scheme="https") as secure:
        name = secure.bucket("bucket")
        trusted = Endpoint(url=secure.url, authorities=certificate)
        assert Bucket("s3", name, endpoint=trusted, environ={}).put_if_absent("a", b"1")
        unknown = Endpoint(url=secure.url, retries=Retries(patience=0.2))
        with pytest.raises(StorageRejected, match="certificate"):
            Bucket("s3", name, endpoint=unknown, environ={}).read("a")


def test_bucket_in_host_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: S3Proxy) -> None:
    """With virtual_host the bucket is part of the host name, and not of the path."""
    monkeypatch.setenv("HTTP_PROXY", proxy.url)  # which stands for the DNS of the site
    with s3_server(tmp_path / "virtual", "--virtual-domain", "s3.test") as virtual:
        proxy.server.RequestHandlerClass.server_port = virtual.port  # type: ignore[attr-defined]
        settings = Endpoint(url="http://s3.test", virtual_host=True, retries=Retries(patience=5))
        store = Bucket("s3", virtual.bucket("models"), "x", endpoint=settings, environ={})
        store.put_if_absent("a", b"1")
        assert (virtual.data / "models/x/a").read_bytes() == b"1"
    assert proxy.requests[0].path == "http://models.s3.test/x/a"


def test_bucket_endpoint_of_the_environment(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_ENDPOINT_URL is used as by the vendor's own tools, also over http."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    own = Bucket("s3", bucket, "p", endpoint=Endpoint(retries=Retries(patience=5)))
    own.put_if_absent("a", b"1")
    assert opened(server.url, bucket, prefix="p").read("a").body == b"1"
    assert endpoint(server.url).url == server.url


def test_bucket_settings_count_before_variables(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of another program never sends the objects to another server than that of the manifest."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    opened(server.url, bucket, prefix="p").put_if_absent("a", b"1")
    assert (server.data / bucket / "p/a").read_bytes() == b"1"


def test_bucket_signs_bodies_without_tls_only() -> None:
    """TLS detects damage on the line; a digest of each body would take as long as that of the manifest."""
    signs = {
        url: Bucket("s3", "bucket", endpoint=Endpoint(url=url))._store.config for url in ("http://s3", "https://s3")
    }
    assert {url: config["unsigned_payload"] for url, config in signs.items()} == {
        "http://s3": "false",
        "https://s3": "true",
    }


@pytest.mark.parametrize(("gib", "parts"), [(1, 64), (156, 9984), (157, 10_000), (1500, 10_000)])
def test_bucket_large_file_has_larger_parts(gib: int, parts: int) -> None:
    """An upload has at most 10,000 parts, so a file of any size can be uploaded."""
    assert -(-gib * 2**30 // part_bytes(gib * 2**30, least=2**24)) == parts


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_bucket_before_an_address_is_rejected(host: str) -> None:
    """A bucket before an address is no name of a host."""
    with pytest.raises(StorageRejected, match=r"has no name of a host: use Path"):
        Bucket("s3", "bucket", endpoint=Endpoint(url=f"http://{host}:9000", virtual_host=True))


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("AZURE_STORAGE_ACCOUNT_KEY", "!secret", "key of the account in base64"),
        ("AZURE_STORAGE_SAS_KEY", "secret", "the query of a SAS URL"),
        ("HTTP_PROXY", "socks5://secret@127.0.0.1:1", "unsupported scheme socks5"),
    ],
)
def test_bucket_wrong_variable_is_named(
    variable: str, value: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that the client cannot use is no outage; its value is not printed."""
    if variable != "HTTP_PROXY":
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    monkeypatch.setenv(variable, value)
    with pytest.raises(StorageRejected, match=advice) as caught:
        Bucket("az", "container", endpoint=endpoint("http://azure.test", patience=3)).read("a")
    assert "secret" not in str(caught.value)


def test_bucket_account_in_the_address_is_rejected() -> None:
    """The host of an account is no container, whose name has no dot."""
    with pytest.raises(StorageRejected, match="is no container: use az://CONTAINER/PREFIX"):
        Bucket("az", "account.blob.core.windows.net", "container")


def test_bucket_without_account_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure has no address without the name of an account, also for a pod with an identity."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageRejected, match="set the variable AZURE_STORAGE_ACCOUNT_NAME"):
        Bucket("az", "container")


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:0"])
def test_bucket_impossible_address_is_rejected(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting and a variable with an impossible address are named; the client would panic."""
    with pytest.raises(StorageRejected, match="endpointUrl must be an address such as"):
        Bucket("s3", "bucket", endpoint=Endpoint(url=url), environ={})
    for value in (url, "127.0.0.1:9000"):
        with pytest.raises(StorageRejected, match="AWS_ENDPOINT_URL must be an address such as"):
            Bucket("s3", "bucket", environ={"AWS_ENDPOINT_URL": value})


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY"])
@pytest.mark.parametrize("value", ["key\n", " key", "k\x00y"])
def test_bucket_key_with_line_break_is_rejected(name: str, value: str) -> None:
    """A key with the line break of `echo` is named; its value is not printed."""
    with pytest.raises(StorageRejected, match=f"variable {name} has a line break") as caught:
        Bucket("s3", "bucket", environ={name: value})
    assert value not in str(caught.value)
    Bucket("s3", "bucket", environ={"GOOGLE_SERVICE_ACCOUNT_KEY": '{\n"type": "service_account"}\n'})


def test_bucket_panic_of_the_client_is_an_error(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the client, whose class is no Exception, ends no process."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key\n")  # not in the variables that the bucket is given
    with pytest.raises(StorageRejected, match="obstore failed"):
        opened(server.url, bucket).read("a")


class _Answers(BaseHTTPRequestHandler):
    """A server that gives each request the same answer."""

    status = 200
    body = b"login"
    headers_sent: ClassVar[dict[str, str]] = {}
    received: ClassVar[list[Message]] = []
    """Headers of the requests to all servers."""

    def do_GET(self) -> None:
        self.received.append(self.headers)
        self.send_response(self.status)
        for name, value in {"Content-Length": str(len(self.body)), **self.headers_sent}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.body)

    do_PUT = do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def _answering(status: int, body: bytes = b"login", host: str = "127.0.0.1", **headers: str) -> Iterator[str]:
    handler = type("Answers", (_Answers,), {"status": status, "body": body, "headers_sent": headers})
    with ThreadingHTTPServer((host, 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        try:
            yield f"http://{host}:{running.server_port}"
        finally:
            running.shutdown()


def test_bucket_server_without_versions_is_rejected() -> None:
    """A web server, which sends no ETag, is none of objects; one that ignores If-Match never gives another version."""
    date = formatdate(usegmt=True)
    with (
        _answering(200, **{"Last-Modified": date}) as url,
        pytest.raises(StorageRejected, match="the answer has no ETag"),
    ):
        opened(url, "bucket").read("a")
    with _answering(200, ETag='"2"', **{"Last-Modified": date}) as url:
        store = opened(url, "bucket")
        assert store.read("a").etag == '"2"'
        with pytest.raises(ObjectChanged, match="the object was replaced"):
            store.read("a", etag='"1"')


def test_bucket_redirect_to_another_host_is_refused(
    proxy: S3Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key no request leaves the server of the bucket; with an identity, other servers are asked."""
    store = opened(proxy.url, bucket)
    with _answering(200, host="127.0.0.2", ETag='"1"', **{"Last-Modified": formatdate(usegmt=True)}) as url:
        _Answers.received.clear()
        proxy.redirect, proxy.before = url, lambda request: "redirect"
        with pytest.raises(StorageRejected, match="the server redirects to another host, which is refused"):
            store.read("a")
        assert _Answers.received == []
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # of https only, so not of these requests
        assert opened(proxy.url, bucket).read("a").body == b"login"


def test_bucket_redirect_carries_no_key(proxy: S3Proxy, bucket: str) -> None:
    """A server that sends a read to another port gives it no signature; a write is not sent there."""
    store = opened(proxy.url, bucket)
    with _answering(200, ETag='"1"', **{"Last-Modified": formatdate(usegmt=True)}) as url:
        _Answers.received.clear()
        proxy.redirect, proxy.before = url, lambda request: "redirect"
        assert store.read("a").body == b"login"
        with pytest.raises(StorageRejected, match="307 Temporary Redirect"):
            store.put_if_absent("a", b"1")
    assert [headers["Authorization"] for headers in _Answers.received] == [None]


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "RequestTimeTooSkewed", "set the clock of this machine"),
        (403, "ExpiredToken", "renew the keys, or use an identity"),
        (400, "ExpiredToken", "renew the keys, or use an identity"),
        (400, "AuthorizationHeaderMalformed", r"set storage\.region to the region"),
        (301, "PermanentRedirect", r"set storage\.region to the region"),
        (400, "InvalidRequest: a checksum is required with Object Lock parameters", "without a default retention"),
    ],
)
def test_bucket_refusal_has_advice(status: int, code: str, advice: str) -> None:
    """A refusal that is no missing right is not repeated, and names what a person can do."""
    body = f"<Error><Code>{code}</Code></Error>".encode()
    with _answering(status, body) as url, pytest.raises(StorageRejected, match=advice):
        opened(url, "bucket", patience=3).put_if_absent("a", b"1")


@pytest.mark.parametrize("status", [301, 501])
def test_bucket_permanent_error_is_rejected(status: int) -> None:
    """An error that no repetition can change is not an outage."""
    with _answering(status) as url, pytest.raises(StorageRejected):
        opened(url, "bucket", patience=3).read("a")


def test_bucket_tls_to_a_server_without_is_rejected(server: S3Server) -> None:
    """https in the address of a server without TLS is not an outage."""
    with pytest.raises(StorageRejected, match="the server is one without TLS: use http://"):
        opened(server.url.replace("http://", "https://"), "bucket", patience=3).read("a")
