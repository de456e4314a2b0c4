"""A process that publishes, for tests that end it: with a proxy at a request, or itself before an operation."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rstar2_train.storage.bucket import Bucket
from rstar2_train.storage.endpoint import Endpoint
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.publication import PublicationWriter
from rstar2_train.storage.retries import Retries
from rstar2_train.storage.store import ObjectStore

WRITES = ("put_if_absent", "put_if_unchanged", "upload", "delete", "read", "stat")


class EndingStore:
    """A store that ends its process at operation `at`, before it or after it."""

    def __init__(self, store: ObjectStore, at: int, *, before: bool) -> None:
        self._store, self._left, self._before = store, at, before

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        return self._counted(value) if name in WRITES else value

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = operation(*arguments, **options)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return run


def publish_to_folder(root: str, at: int, before: bool, attempt: int, name: str, files: Mapping[str, Path]) -> None:
    """Publish to a folder; end at operation `at`."""
    store: Any = EndingStore(LocalFolder(Path(root)), at, before=before)
    _publish(store, attempt, name, files)


def publish_to_bucket(url: str, bucket: str, attempt: int, name: str, files: Mapping[str, Path]) -> None:
    """Publish to a bucket."""
    settings = Endpoint(url=url, part_bytes=5 * 2**20, retries=Retries(patience=10, first_delay=0.01))
    _publish(Bucket("s3", bucket, "team/job", endpoint=settings, environ={}), attempt, name, files)


def _publish(store: ObjectStore, attempt: int, name: str, files: Mapping[str, Path]) -> None:
    writer = PublicationWriter(store, attempt)
    writer.claim()
    writer.publish(name, files)
    writer.retain({name})


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a function in a process of its own, quickly: the modules are loaded once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.publishing"])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process
