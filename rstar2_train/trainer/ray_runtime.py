"""Joins a Ray cluster, or starts a private one on the loopback interface of this machine.

Ray is imported only here, and late: it reads some settings from the environment once, at import.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rstar2_train.api.contracts import StageFailed
from rstar2_train.utils.ray_environment import RAY_ENVIRONMENT, store_bytes
from rstar2_train.utils.scratch_dir import scratch_dir

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
STARTS = 5
"""Tries to start a private Ray. It waits half a minute for its own processes, too little on a very busy machine."""
PREFIX = "rstar2-ray-"
PRIVATE = {
    # Means "one machine only" on any system: Ray then binds all its ports to the loopback interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Otherwise a fixed port, which a second Ray on this machine could not bind.
    "AUTOSCALER_METRIC_PORT": "0",
    # After this time Ray ends a process that cannot reach the head process, with exit code 1. A request of a stopped
    # Ray may be left in this process, and must not end the next stage. Two agents of Ray outlive a killed
    # orchestrator by this time; the next `rstar2 run` ends them.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
}
"""Variables during the start of a private Ray. Programs that this process starts later do not have them."""


@dataclass(slots=True)
class RayRuntime:
    """A joined Ray cluster."""

    ray: Any
    """The module `ray`."""
    folder: Path | None = None
    """Folder of the private Ray."""
    lock: IO[str] | None = None
    """Held while the private Ray runs, so that other processes do not delete its folder."""

    def stop(self) -> None:
        """Leave the cluster; a private Ray stops with all its processes."""
        self.ray.shutdown()
        if self.folder is not None and self.lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.lock.close()
            self.folder = None


def start_or_join(address: str | None, *, cpus: int, gpus: int) -> RayRuntime:
    """Join the cluster at `address`, or start a private one with `cpus` and `gpus` for actors.

    Raises StageFailed (retryable) when Ray does not start.
    """
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address is not None:
        import ray

        with _KeepSigtermHandler():
            ray.init(address=address, logging_level="warning")
        return RayRuntime(ray=ray)
    # Otherwise Ray writes a token for all clusters of this user to the home directory. Ray reads it once per process.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    with _variables(PRIVATE):
        return _start(cpus, gpus)


def _start(cpus: int, gpus: int) -> RayRuntime:
    import ray

    for tries_left in reversed(range(STARTS)):
        folder, lock = scratch_dir(PREFIX)
        runtime = RayRuntime(ray=ray, folder=folder, lock=lock)
        try:
            with _KeepSigtermHandler():
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    num_gpus=gpus,
                    object_store_memory=store_bytes(),
                    include_dashboard=False,
                    logging_level="error",
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(folder),
                )
            break
        except Exception as error:
            runtime.stop()
            message = f"Ray did not start on this machine: {error}"
            if not tries_left:
                raise StageFailed("RanksLost", message, retryable=True) from error
            log.warning("%s; retrying", message)
    return runtime


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _KeepSigtermHandler:
    """Restores the program's SIGTERM handler, which Ray replaces with its own."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGTERM)

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGTERM, self._before)
