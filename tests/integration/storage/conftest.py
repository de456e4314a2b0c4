"""A real S3 server, a proxy that spoils its requests, and stores of each kind."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rstar2_train.storage.bucket import Bucket
from rstar2_train.storage.endpoint import Endpoint
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.retries import Retries
from rstar2_train.storage.store import ObjectStore
from tests.support.azure_server import azure_server
from tests.support.gcs_server import gcs_server
from tests.support.s3_proxy import S3Proxy, s3_proxy
from tests.support.s3_server import CREDENTIALS, S3Server, s3_server_or_skip

PART_BYTES = 5 * 2**20
"""The smallest size of a part that S3 allows."""
_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run VersityGW; skip where it cannot be built."""
    with s3_server_or_skip(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[S3Proxy]:
    """Run a proxy before the server."""
    with s3_proxy(server.port) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> str:
    """Return the name of a new bucket."""
    return server.bucket(f"bucket-{next(_numbers)}")


def endpoint(url: str, *, patience: float = 120) -> Endpoint:
    """Return an endpoint with short delays."""
    retries = Retries(patience=patience, first_delay=0.01, max_delay=0.1)
    return Endpoint(url=url, silent_seconds=1, part_bytes=PART_BYTES, retries=retries)


def opened(url: str, bucket: str, *, prefix: str = "team/job", patience: float = 120) -> Bucket:
    """Return the objects of a bucket below a prefix."""
    return Bucket("s3", bucket, prefix, endpoint=endpoint(url, patience=patience), environ={})


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the credentials into the environment, from which obstore reads them."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "test")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")


@pytest.fixture
def google() -> Iterator[Bucket]:
    """Return a bucket of a server with the conditions of Google."""
    with gcs_server() as url:
        yield Bucket("gs", "bucket", "team/job", endpoint=endpoint(url), environ={})


@pytest.fixture
def azure() -> Iterator[Bucket]:
    """Return a container of a server with the conditions of Azure."""
    with azure_server() as url:
        yield Bucket("az", "container", "team/job", endpoint=endpoint(url), environ={})


@pytest.fixture(params=["bucket", "google", "azure", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Return an empty store of each kind."""
    if request.param == "folder":
        return LocalFolder(tmp_path / "objects")
    if request.param in ("google", "azure"):
        return request.getfixturevalue(request.param)
    server = request.getfixturevalue("server")
    return opened(server.url, request.getfixturevalue("bucket"))


Files = Callable[..., dict[str, Path]]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return a function that writes files of given sizes: name -> path."""

    def write(seed: int = 0, **sizes: int) -> dict[str, Path]:
        folder = tmp_path / f"files-{seed}"
        folder.mkdir(exist_ok=True)
        written = {}
        for name, size in sizes.items():
            written[f"shards/{name}.bin"] = folder / name
            (folder / name).write_bytes(random.Random(seed).randbytes(size))
        return written

    return write
