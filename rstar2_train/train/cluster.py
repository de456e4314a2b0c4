"""The Ray side of the trainer: a private or given cluster, one actor a rank, and calls that never hang on a dead rank."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from rstar2_train.job.contracts import StageFailed
from rstar2_train.train.config import TrainConfig
from rstar2_train.train.rank import LOOPBACK, Rank

OBJECT_STORE_BYTES = 256 * 2**20
SETTLE_SECONDS = 5.0
"""How long to look for a dead rank behind another rank's error."""


class RanksLost(StageFailed):
    """A rank's process died; the group is gone. Another attempt from the last checkpoint may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__("RanksLost", message, retryable=True)


class Ranks:
    """Actors, one a rank, in one process group; every call goes to all of them."""

    def __init__(self, *, ranks: int, config: TrainConfig, ray_address: str | None, gpus_per_rank: float) -> None:
        self.count = ranks
        self._private = _start_ray(ray_address, ranks=ranks, gpus_per_rank=gpus_per_rank)
        # Nothing is restarted: a new rank could not join the old process group.
        remote = ray.remote(num_cpus=0 if self._private else 1, num_gpus=gpus_per_rank, max_restarts=0)(Rank)
        self._actors: list[ActorHandle[Any]] = [
            remote.remote(rank=rank, ranks=ranks, config=config) for rank in range(ranks)
        ]
        host, port = self._wait([self._actors[0].address.remote()], "address")[0]
        hosts = self._wait([actor.__ray_call__.remote(_node) for actor in self._actors], "start")
        here = Counter(hosts)
        self.pids: list[int] = self._wait(
            [
                actor.connect.remote(host=host, port=port, ranks_here=here[node])
                for actor, node in zip(self._actors, hosts, strict=True)
            ],
            "connect",
        )

    def call(self, method: str, *args: Any) -> list[Any]:
        """Run a method on every rank with the same arguments; results by rank. Raises as `_wait` does."""
        return self.call_each(method, [args] * self.count)

    def call_each(self, method: str, args: list[tuple[Any, ...]]) -> list[Any]:
        """Run a method on every rank, each with its own arguments; results by rank."""
        if not self._actors:
            raise RanksLost(f"cannot {method}: the ranks are gone")
        references = [getattr(actor, method).remote(*each) for actor, each in zip(self._actors, args, strict=True)]
        return self._wait(references, method)

    def stop(self) -> None:
        """End all ranks, by agreement where they are all well, and the private Ray."""
        if self._actors:
            with contextlib.suppress(StageFailed, RayTaskError):
                self.call("close")
        self.kill()
        if self._private:
            ray.shutdown()
            shutil.rmtree(self._private, ignore_errors=True)
            self._private = None

    def kill(self) -> None:
        """End all ranks at once."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def _wait(self, references: list[Any], method: str) -> list[Any]:
        """All results, in order.

        Raises:
            RanksLost: when a rank's process has died; the others, which may wait in a collective for ever, are ended.
            Exception: what a rank raised. The group is ended too: its ranks are no longer in step.
        """
        pending = list(references)
        failure: Exception | None = None
        deadline = float("inf")
        while pending and time.monotonic() < deadline:
            ready, pending = ray.wait(pending, num_returns=1, timeout=None if failure is None else 0.2)
            for reference in ready:
                try:
                    ray.get(reference)
                except (ActorDiedError, ActorUnavailableError, RayActorError) as error:
                    number = references.index(reference)
                    self.kill()
                    raise RanksLost(f"trainer rank {number} of {self.count} died during {method}: {error}") from error
                except RayTaskError as error:
                    # Often the echo of another rank's death: wait a little for the death itself.
                    failure = failure or error
                    deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
        if failure is not None:
            self.kill()
            cause = getattr(failure, "cause", None)
            raise cause if isinstance(cause, Exception) else failure from failure
        results: list[Any] = ray.get(references)
        return results


def _node(rank: Rank) -> str:
    return ray.get_runtime_context().get_node_id()


def _start_ray(address: str | None, *, ranks: int, gpus_per_rank: float) -> Path | None:
    """Join a cluster, or start a private one on the loopback interface; returns the private one's folder."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    if address is not None:
        ray.init(address=address, logging_level="warning", log_to_driver=True)
        return None
    # Ray's sockets lie below this folder, and a socket's path may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="rstar2-", dir="/tmp"))
    ray.init(
        address="local",
        num_cpus=ranks,
        num_gpus=max(0, round(ranks * gpus_per_rank)),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        logging_level="warning",
        log_to_driver=True,
        _node_ip_address=LOOPBACK,
        _temp_dir=str(folder),
    )
    return folder
