"""One rank of the trainer: a process of Ray with its shard of the policy and of the optimiser.

`TrainerGroup` calls the same method of every rank at the same time; the ranks communicate in collectives.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig

from rstar2_train.api.stages import GRPOSettings
from rstar2_train.trainer import attention, checkpoint, device, export, self_check, sharded_state, step
from rstar2_train.trainer.batching import MicroBatch
from rstar2_train.trainer.checkpoint import CheckpointManifest
from rstar2_train.trainer.collective_sender import CollectiveSender
from rstar2_train.trainer.compilation import CompilationWatch
from rstar2_train.trainer.lora import BasePolicy
from rstar2_train.trainer.model import Policy, load_policy, named_shards, trained_shards
from rstar2_train.trainer.model_files import copy_companions
from rstar2_train.trainer.optimizer import make_optimizer, reset, update
from rstar2_train.trainer.ray_runtime import LOOPBACK
from rstar2_train.trainer.reference import load_reference
from rstar2_train.trainer.shard_writer import ShardWriter, fingerprint
from rstar2_train.trainer.sleeping_memory import SleepingMemory
from rstar2_train.trainer.types import LoadReport, MetricTally, OptimizerConfig, TrainConfig
from rstar2_train.weights.experimental.offer_channel import ChannelAddress
from rstar2_train.weights.shard_file import FileSummary


class TrainerRank:
    """One of `ranks` processes. After `connect`, all methods are collective."""

    def __init__(self, *, rank: int, ranks: int, config: TrainConfig) -> None:
        self.rank = rank
        self.ranks = ranks
        self.config = config
        self.listener: socket.socket | None = None
        self.ranks_here = 1
        self.ranks_per_host: int | None = None
        self.policy: Policy | None = None
        self.reference: Policy | BasePolicy | None = None
        """Reference policy: the teacher, or that of grpo.referenceKl."""
        self.optimizer: torch.optim.AdamW | None = None
        self.optimizer_config = OptimizerConfig()
        self.writer: ShardWriter | None = None
        self.checkpoint_group: dist.ProcessGroup | None = None
        """Of all ranks: a checkpoint is written at the same time as a step."""
        self.snapshot: dict[str, Any] | None = None
        """The copy of the state that the next checkpoint is written from."""
        self.memory: SleepingMemory | None = None
        """Set by the first `sleep`."""
        self.watch = CompilationWatch() if config.compiled else None
        self.steps = 0
        """GRPO steps of this process."""
        self.copies: dict[str, torch.Tensor] = {}
        """Host memory that the copies for checkpoints reuse."""

    def host(self) -> str:
        """Return the address of this rank's machine."""
        import ray

        return str(ray.util.get_node_ip_address())

    def listen(self, host: str) -> int:
        """Bind the port of rank 0, where the other ranks connect, and return it. Bound early, so that it stays free."""
        self.listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.listener.bind((host, 0))
        self.listener.listen()
        return int(self.listener.getsockname()[1])

    def renumber(self, rank: int) -> None:
        """Take another number, before `listen` and `connect`: ranks are numbered by host."""
        self.rank = rank

    def connect(self, host: str, port: int, ranks_here: int, ranks_per_host: int | None = None) -> int:
        """Join the process group and return the process id.

        Args:
            host: the address of rank 0.
            port: the port that it listens on.
            ranks_here: ranks that share this machine's cores.
            ranks_per_host: ranks on each host; None if the hosts have different numbers.
        """
        self.ranks_here, self.ranks_per_host = ranks_here, ranks_per_host
        if host == LOOPBACK:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(device.thread_count(self.config.threads, ranks_here))
        torch.manual_seed(self.config.seed + self.rank)
        self.compute = device.select_device(self.config.vendor, dtype=self.config.dtype)
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
        self.checkpoint_group = dist.new_group(backend="gloo", timeout=timeout)
        return os.getpid()

    def load(self, model_dir: Path, optimizer: OptimizerConfig) -> LoadReport:
        """Load a model folder, and create a fresh optimiser. Return the facts, the same on all ranks.

        Raises:
            UnsupportedModel: for a model that the trainer does not compute exactly.
        """
        # The memory of an earlier model is free for this one.
        self.policy = self.optimizer = self.reference = None
        self.copies = {}
        config = self.config
        layout = device.layout_of(
            model_dir, config, self.compute, ranks_here=self.ranks_here, ranks_per_host=self.ranks_per_host
        )
        if config.vendor == "AMD":
            attention.check_flash(AutoConfig.from_pretrained(model_dir), self.compute.device, self.compute.dtype)
        family = self_check.check_family(model_dir, packed=config.packed)
        self.policy = load_policy(
            model_dir,
            compute=self.compute,
            chunk=config.logprob_chunk_tokens,
            layout=layout,
            packed=config.packed,
            compiled=config.compiled,
            longest=config.longest_sequence,
            adapter=config.lora,
            seed=config.seed,
        )
        weights = self_check.check_weights(self.policy, self.compute, packed=config.packed)
        if config.reference_is_base(model_dir):
            self.reference = BasePolicy(self.policy)
        elif config.reference is not None:
            self.reference = load_reference(
                config.reference, model_dir, compute=self.compute, layout=layout, config=config
            )
        self.optimizer_config = optimizer
        self.optimizer = make_optimizer(self.policy, optimizer)
        return LoadReport(
            layout=layout,
            attention=self.policy.attention,
            compiled=config.compiled,
            family_difference=family.largest,
            difference=weights.mean,
            adapter=self.policy.adapter,
        )

    def sft(self, batches: list[MicroBatch], lr: float) -> MetricTally:
        """Run one supervised update."""
        policy, _ = self._loaded()
        tally = step.sft_backward(policy, batches, self.compute.device)
        tally.add(self._update(lr))
        return tally

    def sft_loss(self, batches: list[MicroBatch]) -> float:
        """Return this rank's share of the loss of a batch, without an update."""
        policy, _ = self._loaded()
        logprobs = step.start_logprobs(policy, batches, self.compute.device, temperature=1.0)
        shares = (
            -(values.double().cpu() * torch.from_numpy(batch.sft_weights)).sum()
            for values, batch in zip(logprobs, batches, strict=True)
        )
        return float(sum(shares))

    def grpo(self, updates: list[list[MicroBatch]], lr: float, settings: GRPOSettings) -> MetricTally:
        """Run one GRPO step of one or more updates; pi_old is the policy before the first one."""
        policy, _ = self._loaded()
        start = None
        if len(updates) > 1 or settings.importance_correction.drops_sequences:
            start = step.step_start(policy, updates, self.compute.device, settings=settings)
        tally = MetricTally()
        measured, self.steps = self.steps % step.OWN_EXPERTS_EVERY == 0, self.steps + 1
        for number, batches in enumerate(updates):
            tally.add(
                step.grpo_backward(
                    policy,
                    batches,
                    self.compute.device,
                    settings=settings,
                    start=start[number] if start else None,
                    reference=self.reference,
                    own_experts=measured and number == 0,
                )
            )
            tally.add(self._update(lr))
        return tally

    def snapshot_state(self) -> None:
        """Copy this rank's part of a checkpoint into host memory."""
        self.snapshot = sharded_state.snapshot(*self._loaded(), self.copies)

    def write_checkpoint(self, folder: Path) -> dict[str, sharded_state.FileDigest]:
        """Write the snapshot, also during a step, and drop it. Return the sizes and hashes of this rank's files."""
        if self.snapshot is None or self.checkpoint_group is None:
            raise RuntimeError("no snapshot of the state: call snapshot_state() first")
        try:
            return sharded_state.write(folder, self.snapshot, self.checkpoint_group)
        finally:
            self.snapshot = None

    def needed_blocks(self, folder: Path, reset_optimizer: bool, size: int) -> dict[str, list[int]]:
        """Return the blocks of `size` bytes that `restore` reads on this rank, by file. No collective."""
        policy, optimizer = self._loaded()
        return sharded_state.needed_blocks(folder, policy, None if reset_optimizer else optimizer, size)

    def find_damage(self, folder: Path, manifest: CheckpointManifest, names: Sequence[str]) -> str | None:
        """Hash files of a checkpoint; return the difference to its manifest. No collective."""
        return checkpoint.find_damage(folder, manifest, names)

    def restore(self, folder: Path, reset_optimizer: bool) -> None:
        """Load weights and optimiser from a verified checkpoint of any number of ranks."""
        policy, optimizer = self._loaded()
        sharded_state.restore(folder, policy, None if reset_optimizer else optimizer)
        if reset_optimizer:
            reset(optimizer)

    def export(self, model_dir: Path, folder: Path, stop_ids: Sequence[int] = (), for_engines: bool = False) -> None:
        """Gather the weights; write them to `folder`, at rank 0 with the other files of `model_dir`.

        `for_engines`: in the format of weight versions, and not in that of config.json.
        """
        policy, _ = self._loaded()
        is_wide = for_engines and self.config.float32_versions
        if self.rank == 0:
            copy_companions(model_dir, folder, stop_ids, dtype="float32" if is_wide else None)
        export.write_weights(policy, model_dir, folder, dtype=torch.float32 if is_wide else None)

    def start_versions(self, model_dir: Path) -> None:
        """Start a chain of weight versions of the model of `model_dir`; the first version must be a snapshot."""
        self.writer = ShardWriter(rank=self.rank, dtype=self._version_dtype(model_dir))

    def write_version(self, folder: Path, base: str | None) -> FileSummary:
        """Write this rank's file of a weight version. No collective: each rank writes its own shards."""
        policy, _ = self._loaded()
        return self._chain().write(folder, named_shards(policy), base=base, tensors=policy.tensor_names)

    def write_adapter(self, model_dir: Path, folder: Path) -> list[FileSummary]:
        """Gather the adapter; rank 0 writes it to `folder` and returns its files, the others none."""
        policy, _ = self._loaded()
        return export.write_adapter(policy, model_dir, folder)

    def commit_version(self, version_id: str) -> None:
        """Take the last written weight version as the base of the next one."""
        self._chain().commit(version_id)

    def serve_transfers(self) -> ChannelAddress:
        """Answer requests for transfers at rank 0, also during an update; return the address."""
        return CollectiveSender(self.host(), self.compute.device).serve()

    def score(self, model_dir: Path, rows: list[list[int]]) -> tuple[list[list[float]], list[int]]:
        """Return the log-probability of each token of `rows` after its first, and the fingerprint of the shards."""
        policy, _ = self._loaded()
        logprobs = step.row_logprobs(policy, rows, self.compute.device)
        # An adapter is always float32.
        dtype = self._version_dtype(model_dir) if policy.adapter is None else torch.float32
        return logprobs, fingerprint(trained_shards(policy), dtype)

    def sleep(self) -> None:
        """Move the rank's memory to the host, so that an engine can use the device. No collective."""
        if not self.asleep:
            self.memory = self.memory or SleepingMemory(self.compute.device)
            frozen = [*self.writer.tensors()] if self.writer else []
            if isinstance(self.reference, Policy):
                frozen += [shard.to_local() for shard in named_shards(self.reference).values()]
            self.memory.sleep(*self._loaded(), frozen)

    def wake_up(self) -> None:
        """Move the memory back to the device."""
        if self.memory is not None:
            self.memory.wake_up()

    def close(self) -> None:
        """Leave the process group together: if one rank leaves early, the others abort at exit."""
        dist.barrier()
        dist.destroy_process_group()

    @property
    def asleep(self) -> bool:
        """Whether the rank's memory is on the host."""
        return self.memory is not None and self.memory.is_asleep

    def _loaded(self) -> tuple[Policy, torch.optim.AdamW]:
        if self.policy is None or self.optimizer is None:
            raise RuntimeError("no model is loaded: call load() first")
        if self.asleep:
            raise RuntimeError("the memory of the rank is on the host: call wake_up() first")
        return self.policy, self.optimizer

    def _version_dtype(self, model_dir: Path) -> torch.dtype:
        return torch.float32 if self.config.float32_versions else export.stored_dtype(model_dir)

    def _chain(self) -> ShardWriter:
        if self.writer is None:
            raise RuntimeError("no chain of weight versions: call start_versions() first")
        return self.writer

    def _update(self, lr: float) -> MetricTally:
        policy, optimizer = self._loaded()
        norm = update(policy, optimizer, lr=lr, grad_clip=self.optimizer_config.grad_clip)
        finite = norm < float("inf")
        # Every rank has the same norm: the maximum over ranks keeps it.
        maxima = {"grad_norm": norm, "skipped": float(not finite)}
        if self.watch is not None:
            maxima |= {"graphs": float(self.watch.graphs), "uncompiled": float(self.watch.given_up)}
        return MetricTally(maxima=maxima)
