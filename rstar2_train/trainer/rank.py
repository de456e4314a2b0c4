"""One rank of the trainer: the process that Ray starts, holding its shard of the policy and of the optimiser.

`TrainerGroup` calls the same method of every rank at once; inside, ranks meet in collectives.
"""

from __future__ import annotations

import datetime
import os
import socket
from pathlib import Path

import torch
import torch.distributed as dist

from rstar2_train.trainer import device, export, sharded_state, step
from rstar2_train.trainer.batching import MicroBatch
from rstar2_train.trainer.model import Policy, load_policy
from rstar2_train.trainer.optimizer import make_optimizer, update
from rstar2_train.trainer.ray_runtime import LOOPBACK
from rstar2_train.trainer.types import MetricTally, Objective, OptimizerConfig, TrainConfig


class TrainerRank:
    """One of `ranks` processes. From `connect` on, all methods are collective."""

    def __init__(self, *, rank: int, ranks: int, config: TrainConfig) -> None:
        self.rank = rank
        self.ranks = ranks
        self.config = config
        self.listener: socket.socket | None = None
        self.policy: Policy | None = None
        self.optimizer: torch.optim.AdamW | None = None
        self.optimizer_config = OptimizerConfig()

    def host(self) -> str:
        """Address of the machine that this rank runs on."""
        import ray

        return str(ray.util.get_node_ip_address())

    def listen(self, host: str) -> int:
        """On rank 0: take the port where it will wait for the others; bound here, so that nobody else can take it."""
        self.listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.listener.bind((host, 0))
        self.listener.listen()
        return int(self.listener.getsockname()[1])

    def connect(self, host: str, port: int, ranks_here: int) -> int:
        """Join the process group; returns the process id. `ranks_here`: ranks on this machine, for its cores."""
        if host == LOOPBACK:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(device.threads(self.config.threads, ranks_here))
        torch.manual_seed(self.config.seed + self.rank)
        self.compute = device.pick(self.config.vendor)
        timeout = datetime.timedelta(seconds=self.config.collective_timeout_seconds)
        store = dist.TCPStore(
            host,
            port,
            self.ranks,
            is_master=self.rank == 0,
            timeout=timeout,
            master_listen_fd=self.listener.detach() if self.listener else None,
        )
        dist.init_process_group(
            self.compute.backend, store=store, rank=self.rank, world_size=self.ranks, timeout=timeout
        )
        return os.getpid()

    def load(self, model_dir: Path, optimizer: OptimizerConfig) -> None:
        """Read a model folder; a fresh optimiser."""
        self.policy = load_policy(
            model_dir,
            compute=self.compute,
            chunk=self.config.logprob_chunk_tokens,
            activation_checkpointing=self.config.activation_checkpointing,
        )
        self.optimizer_config = optimizer
        self.optimizer = make_optimizer(self.policy, optimizer)

    def sft(self, batches: list[MicroBatch], lr: float) -> MetricTally:
        """One supervised update."""
        policy, _ = self._loaded()
        tally = step.sft_backward(policy, batches, self.compute.device)
        tally.add(self._update(lr))
        return tally

    def grpo(self, updates: list[list[MicroBatch]], lr: float, objective: Objective) -> MetricTally:
        """One GRPO step of one or more updates; pi_old is the policy as this method finds it."""
        policy, _ = self._loaded()
        old = None
        if len(updates) > 1:
            old = [
                step.start_logprobs(policy, batches, self.compute.device, temperature=objective.temperature)
                for batches in updates
            ]
        tally = MetricTally()
        for number, batches in enumerate(updates):
            tally.add(
                step.grpo_backward(
                    policy,
                    batches,
                    self.compute.device,
                    objective=objective,
                    old_logprobs=old[number] if old else None,
                )
            )
            tally.add(self._update(lr))
        return tally

    def save(self, folder: Path) -> dict[str, sharded_state.FileSeal]:
        """Write this rank's part of a checkpoint; returns its files' sizes and hashes."""
        return sharded_state.save(folder, *self._loaded())

    def restore(self, folder: Path, reset_optimizer: bool) -> None:
        """Read weights and optimiser from a verified checkpoint, whatever number of ranks wrote it."""
        policy, optimizer = self._loaded()
        sharded_state.restore(folder, policy, None if reset_optimizer else optimizer)
        if reset_optimizer:
            self.optimizer = make_optimizer(policy, self.optimizer_config)

    def export(self, model_dir: Path, folder: Path) -> None:
        """Gather the weights; rank 0 fills `folder`: them in safetensors, all else copied from `model_dir`."""
        policy, _ = self._loaded()
        if self.rank == 0:
            export.copy_companions(model_dir, folder)
        export.write_weights(policy, model_dir, folder)

    def close(self) -> None:
        """Leave the process group together: a rank that leaves early makes others abort at exit."""
        dist.barrier()
        dist.destroy_process_group()

    def _loaded(self) -> tuple[Policy, torch.optim.AdamW]:
        if self.policy is None or self.optimizer is None:
            raise RuntimeError("no model is loaded: call load() first")
        return self.policy, self.optimizer

    def _update(self, lr: float) -> MetricTally:
        policy, optimizer = self._loaded()
        norm = update(policy, optimizer, lr=lr, grad_clip=self.optimizer_config.grad_clip)
        finite = norm < float("inf")
        # Every rank has the same norm: a maximum keeps it whole when ranks are added up.
        return MetricTally(maxima={"grad_norm": norm, "skipped": float(not finite)})
