"""Joins a Ray cluster, or starts a private one on the loopback interface of this machine.

Ray is imported here and late: some of its settings are read from the environment once, at import.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rstar2_train.api.contracts import StageFailed
from rstar2_train.utils.scratch_dir import scratch_dir

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 256 * 2**20
"""Room for the sequences of one step on one machine."""
STARTS = 5
"""Tries to start a private Ray: it gives its own processes half a minute, too little on a machine that is very busy."""
PREFIX = "rstar2-ray-"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",  # the default, 15, would leave the trainer what engines and sandboxes do not want
}
PRIVATE = {
    # Ray's name for "one machine only", on any system: all its ports are then bound to the loopback interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Otherwise a fixed port, which a second Ray on this machine could not have.
    "AUTOSCALER_METRIC_PORT": "0",
    # Ray's helpers give up on a head that was killed with its driver after seconds, not after a minute.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}


@dataclass(slots=True)
class RayRuntime:
    """Ray, joined."""

    ray: Any
    """The module."""
    folder: Path | None = None
    """The private Ray's folder."""
    lock: IO[str] | None = None
    """Held while the private Ray lives: other starts leave its folder alone."""

    def stop(self) -> None:
        """Leave the cluster; a private Ray ends with all its processes."""
        self.ray.shutdown()
        if self.folder is not None and self.lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.lock.close()
            self.folder = None


def join(address: str | None, *, cpus: int, gpus: int) -> RayRuntime:
    """Join the cluster at `address`, or start a private one with `cpus` and `gpus` to give to actors.

    Raises StageFailed (retryable) when Ray cannot be started.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if address is not None:
        import ray

        with _SignalsKept():
            ray.init(address=address, logging_level="warning")
        return RayRuntime(ray=ray)
    for name, value in PRIVATE.items():
        os.environ[name] = value
    # Else Ray leaves a token in the home directory, for all clusters of this user. One a process: Ray reads it once.
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    for left in reversed(range(STARTS)):
        folder, lock = scratch_dir(PREFIX)
        runtime = RayRuntime(ray=ray, folder=folder, lock=lock)
        try:
            with _SignalsKept():
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    num_gpus=gpus,
                    object_store_memory=OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    logging_level="error",
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(folder),
                )
            break
        except Exception as error:
            runtime.stop()
            message = f"Ray could not be started on this machine: {error}"
            if not left:
                raise StageFailed("RanksLost", message, retryable=True) from error
            log.warning("%s; trying again", message)
    return runtime


class _SignalsKept:
    """Ray puts its own SIGTERM handler in place of the program's, which must go on deciding how it ends."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGTERM)

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGTERM, self._before)
