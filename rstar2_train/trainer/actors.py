"""One Ray actor per rank, and calls to all ranks that do not hang when a rank crashes."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rstar2_train.api.contracts import StageFailed
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer import ray_runtime
from rstar2_train.trainer.hosts import order_by_host, ranks_per_host
from rstar2_train.trainer.types import TrainConfig

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from rstar2_train.trainer.rank import TrainerRank

_BACKGROUND = "background"
"""Ray's concurrency group of calls that run next to the others, in a second thread of each rank."""
_FILES = "files"
"""The group of the transfers of files, in a third thread."""
LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")
"""Texts in the errors of gloo if another rank does not answer; they have no class of their own."""
LOST_DEVICE = ("CUDA error", "HIP error", "NCCL communicator was aborted", "CUBLAS_STATUS_", "HIPBLAS_STATUS_")
"""Texts in the errors of a device or its driver: memory errors, illegal accesses, a device that left the bus."""
PROGRAM_ERRORS = ("device-side assert", "invalid configuration argument")
"""Texts in the errors of a device that a defect of the program causes: a restart would repeat them."""
VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""Variables that show a process its devices. Torch for ROCm reads the first one, then the second one."""
SETTLE_SECONDS = 5.0
"""Wait for a crashed rank that may be the cause of another rank's error, in seconds."""


class RanksLost(StageFailed):
    """The process of a rank crashed, and the group with it. A restart from the last checkpoint may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__("RanksLost", message, retryable=True)


class ModelRefused(StageFailed):
    """The trainer does not compute the model exactly; the message has the reason and the fix."""

    def __init__(self, message: str) -> None:
        super().__init__("BadConfiguration", message, retryable=False)


class RankProcess:
    """The actor around a TrainerRank. Only its process imports torch, which saves the orchestrator time and memory."""

    def __init__(self, *, rank: int, ranks: int, config: TrainConfig) -> None:
        # Set before the import of torch, which reads it once. Threads that spin long while they wait for the slowest
        # thread slow a step down many times if any other process runs. Without spinning, small steps on an idle machine
        # take up to half as long again. So they spin for 0.1 ms: 2,000 pauses of 140 cycles (less on old processors).
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
        import ray

        os.environ.update(device_variables(os.environ, ray.get_gpu_ids()))
        from rstar2_train.trainer.rank import TrainerRank

        self._rank: TrainerRank = TrainerRank(rank=rank, ranks=ranks, config=config)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the rank.

        Raises:
            RanksLost: for a full or lost device, and a lost connection to another rank.
            ModelRefused: if the model cannot be computed exactly.
        """
        try:
            return getattr(self._rank, method)(*args)
        except UnsupportedModel as error:
            raise ModelRefused(str(error)) from error
        except Exception as error:
            reason = _reason(error)
            if reason is None:
                raise
            raise RanksLost(f"trainer rank {self._rank.rank} of {self._rank.ranks} {reason} during {method}") from error

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a function of a module, run on this rank's host."""
        return function(*args)


def device_variables(environ: Mapping[str, str], ids: Sequence[int | str]) -> dict[str, str]:
    """Return the variables that show a rank only the devices that Ray gave it.

    Ray narrows one variable itself. Without the package amdsmi it takes AMD devices for NVIDIA's, and narrows the one
    that torch for ROCm reads second: all ranks would use the first device.
    """
    return {name: ",".join(map(str, ids)) for name in VISIBLE if ids and name in environ}


def _reason(error: Exception) -> str | None:
    """Return why a rank cannot continue although the program has no defect, as a part of a sentence; else None."""
    import torch
    from torch.distributed import DistError

    text = str(error).strip().partition("\n")[0]
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"has no free device memory ({text}; lower spec.trainer.tokensPerMicroBatch or set "
            "spec.trainer.activationCheckpointing to Always)"
        )
    if any(sign in str(error) for sign in PROGRAM_ERRORS):
        return None
    if isinstance(error, torch.AcceleratorError) or any(sign in str(error) for sign in LOST_DEVICE):
        return f"lost its device ({text}; see the kernel log of the node: NVRM Xid or amdgpu)"
    if isinstance(error, DistError) or any(sign in str(error) for sign in LOST_CONNECTION):
        return f"lost the connection to another rank ({text})"
    return None


class RankActors:
    """The actors of all ranks, in one process group; every call reaches all of them."""

    def __init__(
        self,
        *,
        ranks: int,
        config: TrainConfig,
        ray_address: str | None,
        gpus_per_rank: float,
        process: type[RankProcess] = RankProcess,
    ) -> None:
        """Start the ranks. `process`: the class of their actors; the other arguments are those of TrainerGroup."""
        self.count = ranks
        self._runtime = ray_runtime.start_or_join(ray_address, cpus=ranks, gpus=round(ranks * gpus_per_rank))
        # No restarts: a new rank could not join the old process group.
        remote = self._runtime.ray.remote(
            num_cpus=1, num_gpus=gpus_per_rank, max_restarts=0, concurrency_groups={_BACKGROUND: 1, _FILES: 1}
        )(process)
        self._hosts: list[str] = []
        """The address of each rank's host."""
        self._actors: list[ActorHandle[Any]] = [
            remote.remote(rank=rank, ranks=ranks, config=config) for rank in range(ranks)
        ]
        try:
            self.pids = self._connect()
        except BaseException:
            self._kill()
            self._runtime.stop()
            raise

    def _connect(self) -> list[int]:
        """Number the ranks by host, let them form a process group, and return their process ids."""
        hosts = self.call("host")
        order = order_by_host(hosts)
        if order != list(range(self.count)):
            self._actors, hosts = [self._actors[index] for index in order], [hosts[index] for index in order]
            self.call_each("renumber", [(rank,) for rank in range(self.count)])
        self._hosts = hosts
        port = self._wait([self._actors[0].call.remote("listen", hosts[0])], "listen")[0]
        ranks_on = Counter(hosts)
        equal = ranks_per_host(hosts)
        return self.call_each("connect", [(hosts[0], port, ranks_on[host], equal) for host in hosts])

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every rank with the same arguments; return the results by rank. Raises as `_wait` does."""
        return self.call_each(method, [args] * self.count)

    def call_each(self, method: str, args: list[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every rank, each with its own arguments; return the results by rank. Raises like `_wait`."""
        references = [
            actor.call.remote(method, *arguments)
            for actor, arguments in zip(self._running(f"call {method}"), args, strict=True)
        ]
        return self._wait(references, method)

    def call_background(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every rank in a second thread, next to other calls; return the results by rank.

        The method must use a process group of its own. Raises like `_wait`; a failure also stops the other calls.
        """
        references = [
            actor.call.options(concurrency_group=_BACKGROUND).remote(method, *args)
            for actor in self._running(f"call {method}")
        ]
        return self._wait(references, method)

    def call_first(self, method: str, *args: Any) -> Any:
        """Call a method of rank 0 only, which must not be collective. Raises like `_wait`."""
        return self._wait([self._running(f"call {method}")[0].call.remote(method, *args)], method)[0]

    def host_ranks(self) -> list[list[int]]:
        """Return the ranks of each host, those of this process's host first."""
        here = str(self._runtime.ray.util.get_node_ip_address())
        hosts = [here, *(host for host in dict.fromkeys(self._hosts) if host != here)]
        return [[rank for rank, other in enumerate(self._hosts) if other == host] for host in hosts]

    def run_background(self, function: Callable[..., Any], args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run a function in every rank's process, in the thread of `call_background`; return the results by rank.

        `args`: its arguments by rank. Raises like `_wait`.
        """
        references = [
            actor.run.options(concurrency_group=_BACKGROUND).remote(function, *arguments)
            for actor, arguments in zip(self._running("move files"), args, strict=True)
        ]
        return self._wait(references, "a transfer of files")

    def start_file_call(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """Start a function on the host of a rank, next to all other calls; return the reference of its result."""
        actor = self._running("transfer files")[rank]
        return actor.run.options(concurrency_group=_FILES).remote(function, *args)

    def file_result(self, reference: Any) -> Any:
        """Return the result of `start_file_call`. Raises like `_wait`."""
        return self._wait([reference], "a transfer of files")[0]

    def stop(self) -> None:
        """Stop all ranks, together if all are healthy, and the private Ray."""
        if self._actors:
            # A rank that crashed must not prevent the stop of the others.
            with contextlib.suppress(Exception):
                self.call("close")
        self._kill()
        self._runtime.stop()

    def _running(self, action: str) -> list[ActorHandle[Any]]:
        """Return the actors by rank. `action`: the verb of the message. Raises RanksLost if the ranks have stopped."""
        if not self._actors:
            raise RanksLost(f"cannot {action}: the ranks have stopped")
        return self._actors

    def _kill(self) -> None:
        for actor in self._actors:
            self._runtime.ray.kill(actor)
        self._actors = []

    def _wait(self, references: list[Any], method: str) -> list[Any]:
        """Return all results, in order.

        Raises:
            RanksLost: if the process of a rank crashed; the others, which may be blocked in a collective, are killed.
            Exception: the exception of a rank. The group is killed too: its ranks are no longer in the same state.
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
                    # Often the consequence of another rank's crash: wait a little for the crash itself.
                    failure = failure or error
                    deadline = min(deadline, time.monotonic() + SETTLE_SECONDS)
                except ray.exceptions.RayError as error:
                    self._kill()
                    number = references.index(reference)
                    raise RanksLost(
                        f"trainer rank {number} of {self.count} crashed during {method}: {error}"
                    ) from error
        if failure is not None:
            self._kill()
            cause = getattr(failure, "cause", None)
            raise cause if isinstance(cause, Exception) else failure from failure
        results: list[Any] = ray.get(references)
        return results
