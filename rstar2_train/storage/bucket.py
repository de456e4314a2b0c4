"""A bucket of S3, Google Cloud Storage, Azure Blob Storage or an S3-compatible server, by obstore.

Credentials come from the environment, as the vendors' own tools read them: keys in variables, or the identity of the
pod (IRSA, workload identity).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore import exceptions

from rstar2_train.storage.endpoint import REFUSED_ADDRESS, Endpoint, open_client
from rstar2_train.storage.retries import Result
from rstar2_train.storage.store import (
    AccessDenied,
    Content,
    CorruptObject,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    StorageRejected,
    StorageUnavailable,
    StoredObject,
    check_name,
)

PARALLEL_PARTS = 8
MAX_PARTS = 10_000
"""Parts of an upload that S3 and Google allow."""
_VARIABLES = ("AWS_", "AZURE_")
"""Starts of the names of variables whose values are one line. A key of Google is a document of several lines."""
_PANIC = "obstore failed, probably by an address or credentials that it cannot read"
_NUMBER = re.compile(r"[0-9.]+|.*:.*")
"""A host that is an address of IP."""
_ACCOUNT = "set the variable AZURE_STORAGE_ACCOUNT_NAME, also with an identity"
_ADVICE = {
    "SAS query pair": "write the query of a SAS URL, such as sv=...&sig=..., into the variable AZURE_STORAGE_SAS_KEY",
    "Invalid Access Key": "write the key of the account in base64 into the variable AZURE_STORAGE_ACCOUNT_KEY",
    "Account must be specified": _ACCOUNT,
    "RequestTimeTooSkewed": "set the clock of this machine",
    "ExpiredToken": "renew the keys, or use an identity, which renews its own",
    "AuthorizationHeaderMalformed": "set storage.region to the region of the bucket",
    "redirect without LOCATION": "set storage.region to the region of the bucket, or endpointUrl to its server",
    "Object Lock": "use a bucket without a default retention of Object Lock",
}
"""Part of the message of an error -> its remedy."""
METADATA = "169.254.169.254"
"""Server of the identity of a machine in a cloud, which the client asks if the environment has no credentials."""
ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Scheme -> variables with the address of the server, of which the first counts."""
ALLOWED_ENDPOINT = "an address such as https://s3.example.org:9000, without user, path and query"
_REJECTED = re.compile(
    r"status code: (4(?!08|09|29)\d\d|30\d|501|505)|redirect|builder error|without TLS|certificate"
    r"|URL scheme is not allowed|unsupported scheme"
)
"""A server that redirects has the bucket in another region."""
_NO_MISSING_RIGHT = re.compile("RequestTimeTooSkewed|ExpiredToken")
_STATUS = re.compile(r"status code: (\d\d\d)")
_DAMAGED = re.compile(r"XAmzContentSHA256Mismatch|BadDigest|IncompleteBody|RequestTimeout|InvalidDigest")
"""Codes of S3 for a request whose body was damaged on the line: a retry can succeed."""


def check_endpoint(url: str) -> str:
    """Return a valid address of an endpoint. Raises ValueError with the allowed form."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets, or a port above 65535
        valid = False
    if not valid or parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"must be {ALLOWED_ENDPOINT}")
    return url.rstrip("/")


def part_bytes(size: int, *, least: int) -> int:
    """Return the size of the parts of a file: the least one, unless they would be too many."""
    return max(least, -(-size // MAX_PARTS))


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise StorageRejected for a variable of credentials that no server takes, such as a key with a line break."""
    for name, value in environ.items():
        if name.startswith(_VARIABLES) and (value != value.strip() or not value.isprintable()):
            raise StorageRejected(
                f"the variable {name} has a line break, a space at an end or a control character: write it again "
                "without, for example by `printf %s` in place of `echo`"
            )


class Bucket:
    """The objects of a bucket below a prefix."""

    def __init__(
        self,
        scheme: str,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: Endpoint | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Open a bucket; no request is sent. `scheme`: s3, gs or az.

        `environ`: variables of the environment. Raises StorageRejected for settings that no server can have.
        """
        endpoint = endpoint or Endpoint()
        self.address = "/".join(filter(None, (f"{scheme}://{bucket}", prefix)))
        self._retries, self._part_bytes = endpoint.retries, endpoint.part_bytes
        variable = next((name for name in ENDPOINT_VARIABLES[scheme] if environ.get(name)), "")
        self.server = endpoint.url or environ.get(variable, "")
        """Address of the server; empty: the vendor's own."""
        self.is_plain = self.server.startswith("http://")
        """Whether requests travel without TLS, which would detect damaged bytes."""
        self._has_generations = scheme == "gs"
        check_environment(environ)
        try:
            if self.server:
                check_endpoint(self.server)
        except ValueError as error:
            field = "endpointUrl" if endpoint.url else f"the variable {variable}"
            raise StorageRejected(f"{self.address}: {field} {error}") from error
        if scheme == "az" and not re.fullmatch("[a-z0-9-]+", bucket):
            raise StorageRejected(f"{self.address}: {bucket} is no container: use az://CONTAINER/PREFIX. {_ACCOUNT}")
        if endpoint.virtual_host and _NUMBER.fullmatch(urlsplit(self.server).hostname or ""):
            raise StorageRejected(
                f"{self.address}: addressing VirtualHost puts the bucket before the host, and {self.server} has no "
                "name of a host: use Path, or a name"
            )
        try:
            self._store = open_client(scheme, bucket, prefix, endpoint, self.server.rstrip("/"))
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise StorageRejected(f"{self.address}: {_message(error)}") from error
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise StorageRejected(f"{self.address}: {_PANIC} ({error})") from error

    def stat(self, name: str) -> StoredObject:
        """Return size and version. Raises ObjectMissing."""
        meta = self._run(name, lambda: obstore.head(self._store, check_name(name)))
        return StoredObject(name, meta["size"], self._version(meta))

    def read(self, name: str, *, start: int = 0, end: int | None = None, etag: str = "", limit: int = 0) -> Content:
        """Return the bytes from `start` to before `end` (store.ObjectStore)."""
        options: Any = {"if_match": _tag(etag)} if etag else {}
        if end is not None:
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}
        return self._run(name, partial(self._get, name, options, etag, limit))

    def _get(self, name: str, options: Any, wanted: str, limit: int) -> Content:
        answer = obstore.get(self._store, check_name(name), options=options)
        first, last = answer.range
        etag = self._version(answer.meta)
        if not etag:
            raise StorageRejected(f"{self.address}/{name}: the answer has no ETag, so the server is none of objects")
        if wanted and _tag(etag) != _tag(wanted):  # a server that ignores If-Match
            raise ObjectChanged(f"{self.address}/{name}: the object was replaced")
        if limit and last - first > limit:
            raise CorruptObject(f"{self.address}/{name} has {last - first:,} bytes; allowed: {limit:,}")
        body = bytes(answer.bytes())
        if len(body) != last - first:
            raise StorageUnavailable(f"{self.address}/{name}: {len(body)} bytes arrived of {last - first}")
        return Content(body, etag, answer.meta["size"])

    def put_if_absent(self, name: str, body: bytes) -> str:
        """Create an object; return its ETag. Raises ObjectExists (store.ObjectStore)."""
        return self._put(name, body, "create")

    def put_if_unchanged(self, name: str, body: bytes, etag: str) -> str:
        """Replace the version `etag`; return the new ETag. Raises ObjectChanged (store.ObjectStore)."""
        try:
            return self._put(name, body, _condition(etag))
        except ObjectMissing as error:
            raise ObjectChanged(f"{self.address}/{name} was deleted") from error

    def _put(self, name: str, body: bytes, mode: Any) -> str:
        def put() -> str:
            done = obstore.put(self._store, check_name(name), body, mode=mode, use_multipart=False)
            return self._version(done)

        try:
            return self._run(name, put)
        except (ObjectExists, ObjectChanged):
            # The answer of an earlier try may have been lost: then the object is that of this call.
            if etag := self._etag_of(name, body):
                return etag
            raise

    def _etag_of(self, name: str, body: bytes) -> str:
        """Return the ETag of an object if its content is `body`; else an empty string."""
        before = b""
        try:
            while True:
                current = self.read(name, limit=len(body))
                if current.body == body:
                    return current.etag
                if current.body == before:  # read twice, because the line may damage an answer
                    return ""
                before = current.body
        except (ObjectMissing, CorruptObject):
            return ""

    def upload(self, name: str, file: Path) -> None:
        """Create or replace an object by a file, in parts if it is large."""

        def put() -> None:
            size = file.stat().st_size
            obstore.put(
                self._store,
                check_name(name),
                file,
                use_multipart=size > self._part_bytes,
                chunk_size=part_bytes(size, least=self._part_bytes),
                max_concurrency=PARALLEL_PARTS,
            )

        self._run(name, put)

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""

        def remove() -> None:
            try:
                obstore.delete(self._store, check_name(name))
            except (exceptions.NotFoundError, FileNotFoundError):
                return

        self._run(name, remove)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a prefix, sorted by name."""

        def pages() -> list[StoredObject]:
            metas = [meta for page in obstore.list(self._store, prefix or None) for meta in page]
            return [StoredObject(meta["path"], meta["size"], meta["e_tag"] or "") for meta in metas]

        yield from sorted(self._run(prefix, pages), key=lambda item: item.name)

    def _version(self, answer: Any) -> str:
        """Return the identifier of a version; empty: the server sends none.

        It is the ETag; of Google, whose conditional writes take no ETag, ETag and generation.
        """
        parts = (answer["e_tag"], answer["version"] if self._has_generations else None)
        return " ".join(filter(None, parts))

    def _run(self, name: str, operation: Callable[[], Result]) -> Result:
        """Return the result of an operation, with retries. Raises StorageError."""

        def attempt() -> Result:
            try:
                return operation()
            except (exceptions.BaseError, FileNotFoundError, FileExistsError, PermissionError, ValueError) as error:
                raise _error(f"{self.address}/{name}".rstrip("/"), error) from error
            except BaseException as error:
                if not _is_panic(error):
                    raise
                raise StorageRejected(f"{self.address}/{name}: {_PANIC} ({error})") from error

        return self._retries.run(attempt)


def _tag(version: str) -> str:
    """Return the ETag of a version."""
    return version.partition(" ")[0]


def _condition(version: str) -> dict[str, str]:
    """Return the condition of a write that replaces a version."""
    tag, _, generation = version.partition(" ")
    return {"e_tag": tag, "version": generation} if generation else {"e_tag": tag}


def _is_panic(error: BaseException) -> bool:
    """Return whether an error is a defect of obstore: its class is no Exception, and no module has it."""
    return type(error).__name__ == "PanicException"


def _error(name: str, error: Exception) -> Exception:
    """Return the error of this package for one of obstore."""
    text = f"{name}: {_message(error)}"
    if METADATA in text:
        return AccessDenied(
            f"{text}. The environment has no credentials, and the machine has no identity that has them"
        )
    is_generic = isinstance(error, exceptions.GenericError)
    status = _STATUS.search(text) if is_generic else None  # of a listing, whose errors have no class
    if isinstance(error, exceptions.NotFoundError | FileNotFoundError) or (status and status[1] == "404"):
        return ObjectMissing(text)
    if isinstance(error, exceptions.AlreadyExistsError | FileExistsError):
        return ObjectExists(text)
    if isinstance(error, exceptions.PreconditionError):
        return ObjectChanged(text)
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError | PermissionError)
    if (denied or (status and status[1] in ("401", "403"))) and not _NO_MISSING_RIGHT.search(text):
        return AccessDenied(text)
    if not is_generic or (_REJECTED.search(text) and not _DAMAGED.search(text)):
        return StorageRejected(text)
    return StorageUnavailable(text)


def _message(error: Exception) -> str:
    """Return the message of an error of obstore, with the cause, which only its debug form has."""
    text, _, debug = str(error).partition("\n\nDebug source:")
    causes = re.findall(r'(?:error: |message: |[(]\s*)"([^"]{3,})"', debug)
    if certificate := re.search(r"InvalidCertificate[(]\s*(\w+)", debug):
        causes.append(f"the certificate of the server is not trusted ({certificate[1]})")
    if f"{REFUSED_ADDRESS}," in debug:
        causes = ["the server redirects to another host, which is refused: set endpointUrl to that of the bucket"]
    if "InvalidContentType" in debug:
        causes.append("the server is one without TLS: use http://, or another port")
    text = " ".join(text.split())
    advice = [remedy for code, remedy in _ADVICE.items() if code in text]
    causes = [cause[:200] for cause in dict.fromkeys(causes) if cause not in text and "<" not in cause]
    return "; ".join([text[:600], *advice, *causes])
