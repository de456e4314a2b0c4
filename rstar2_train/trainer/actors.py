"""One actor of Ray a rank, and calls that never hang on a dead one."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from rstar2_train.api.contracts import StageFailed
from rstar2_train.trainer import ray_runtime
from rstar2_train.trainer.types import TrainConfig

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from rstar2_train.trainer.rank import TrainerRank

SETTLE_SECONDS = 5.0
"""How long to look for a dead rank behind another rank's error."""


class RanksLost(StageFailed):
    """A rank's process died; the group is gone. Another attempt from the last checkpoint may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__("RanksLost", message, retryable=True)


class RankProcess:
    """The actor around a Rank: torch is imported in its process only, which saves the driver seconds and memory."""

    def __init__(self, *, rank: int, ranks: int, config: TrainConfig) -> None:
        # Before torch is imported, which reads it once. Threads that spin for long while they wait for the slowest one
        # make a step many times slower as soon as anything else runs on the machine; threads that do not spin at all
        # make small steps on an idle machine half as slow again (0.27 s beside 0.18 s). So: some tens of microseconds.
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
        from rstar2_train.trainer.rank import TrainerRank

        self._rank: TrainerRank = TrainerRank(rank=rank, ranks=ranks, config=config)

    def call(self, method: str, *args: Any) -> Any:
        """Run a method of the Rank."""
        return getattr(self._rank, method)(*args)


class RankActors:
    """Actors, one a rank, in one process group; every call goes to all of them."""

    def __init__(self, *, ranks: int, config: TrainConfig, ray_address: str | None, gpus_per_rank: float) -> None:
        self.count = ranks
        self._runtime = ray_runtime.join(ray_address, cpus=ranks, gpus=round(ranks * gpus_per_rank))
        # Nothing is restarted: a new rank could not join the old process group.
        remote = self._runtime.ray.remote(num_cpus=1, num_gpus=gpus_per_rank, max_restarts=0)(RankProcess)
        self._actors: list[ActorHandle[Any]] = [
            remote.remote(rank=rank, ranks=ranks, config=config) for rank in range(ranks)
        ]
        hosts = self.call("host")
        port = self._wait([self._actors[0].call.remote("listen", hosts[0])], "listen")[0]
        here = Counter(hosts)
        self.pids: list[int] = self.call_each("connect", [(hosts[0], port, here[host]) for host in hosts])

    def call(self, method: str, *args: Any) -> list[Any]:
        """Run a method on every rank with the same arguments; results by rank. Raises as `_wait` does."""
        return self.call_each(method, [args] * self.count)

    def call_each(self, method: str, args: list[tuple[Any, ...]]) -> list[Any]:
        """Run a method on every rank, each with its own arguments; results by rank."""
        if not self._actors:
            raise RanksLost(f"cannot {method}: the ranks have ended")
        references = [actor.call.remote(method, *each) for actor, each in zip(self._actors, args, strict=True)]
        return self._wait(references, method)

    def stop(self) -> None:
        """End all ranks, by agreement where they are all well, and the private Ray."""
        if self._actors:
            # A rank that died meanwhile must not keep the others from being ended.
            with contextlib.suppress(Exception):
                self.call("close")
        self._kill()
        self._runtime.stop()

    def _kill(self) -> None:
        for actor in self._actors:
            self._runtime.ray.kill(actor)
        self._actors = []

    def _wait(self, references: list[Any], method: str) -> list[Any]:
        """All results, in order.

        Raises:
            RanksLost: when a rank's process has died; the others, which may wait in a collective for ever, are ended.
            Exception: what a rank raised. The group is ended too: its ranks are no longer in step.
        """
        ray = self._runtime.ray
        pending = list(references)
        failure: Exception | None = None
        deadline = float("inf")
        while pending and time.monotonic() < deadline:
            ready, pending = ray.wait(pending, num_returns=1, timeout=None if failure is None else 0.2)
            for reference in ready:
                try:
                    ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    # Often the echo of another rank's death: wait a little for the death itself.
                    failure = failure or error
                    deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
                except ray.exceptions.RayError as error:
                    self._kill()
                    number = references.index(reference)
                    raise RanksLost(f"trainer rank {number} of {self.count} died during {method}: {error}") from error
        if failure is not None:
            self._kill()
            cause = getattr(failure, "cause", None)
            raise cause if isinstance(cause, Exception) else failure from failure
        results: list[Any] = ray.get(references)
        return results
