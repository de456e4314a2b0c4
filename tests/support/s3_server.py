"""A real S3 server for tests: VersityGW on a folder, built once from its Go module."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rstar2_train.utils.ports import LOOPBACK, free_ports
from rstar2_train.utils.supervisor import die_with_parent
from tests.kube_node.binaries import VERSITYGW, ensure_binary
from tests.kube_node.requirements import ClusterUnavailable

ACCESS_KEY, SECRET_KEY = "rstar2-tests", "rstar2-tests-secret"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}


@dataclass(frozen=True)
class S3Server:
    """The running server. A bucket is a folder of `data`."""

    port: int
    data: Path
    scheme: str = "http"
    host: str = LOOPBACK

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"{self.scheme}://{self.host}:{self.port}"

    def bucket(self, name: str) -> str:
        """Create a bucket; return its name."""
        (self.data / name).mkdir()
        return name


def _require_attributes(folder: Path) -> None:
    """Raise ClusterUnavailable for a file system without extended attributes.

    VersityGW can keep them in other files (--sidecar), but then a read can return the new ETag with the old body.
    """
    try:
        os.setxattr(folder, "user.rstar2", b"1")
    except OSError as error:
        raise ClusterUnavailable(
            f"{folder} has no extended attributes ({error}): set TMPDIR to a folder with"
        ) from error


@contextlib.contextmanager
def s3_server(
    folder: Path, *arguments: str, scheme: str = "http", host: str = LOOPBACK, port: int = 0
) -> Iterator[S3Server]:
    """Run the server until the block ends. `arguments`: further ones of VersityGW, such as --cert and --key.

    `host`: an address of this machine; `port`: that of an earlier server of the folder; 0: any. Raises
    ClusterUnavailable if the server cannot be built.
    """
    program = ensure_binary(VERSITYGW)
    port = port or free_ports(1)[0]
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    _require_attributes(data)
    command: Sequence[str] = [program, "--port", f"{host}:{port}", "--quiet", *arguments, "posix", str(data)]
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY, "HOME": str(folder)}
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, preexec_fn=die_with_parent)
    try:
        while True:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError):
                socket.create_connection((host, port)).close()
                break
            time.sleep(0.05)
        yield S3Server(port, data, scheme, host)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def s3_server_or_skip(folder: Path) -> Iterator[S3Server]:
    """Run a server for a fixture; skip its tests where the server cannot be built."""
    try:
        with s3_server(folder) as running:
            yield running
    except ClusterUnavailable as problem:
        pytest.skip(str(problem))
