"""TrainerGroup: the interface of the trainer. Synchronous; call it from a thread, not from the event loop.

It distributes the sequences over the ranks, runs each update on all of them, and combines their metrics. The ranks are
processes of Ray (`actors`, `rank`); this side needs no torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.capacity.config_file import read_config, stored_dtype_name
from rstar2_train.capacity.layout import Layout
from rstar2_train.storage.host_bucket import HostBucket
from rstar2_train.storage.host_objects import read_host_objects
from rstar2_train.storage.manifest import BLOCK_BYTES
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.actors import RankActors, RanksLost
from rstar2_train.trainer.batching import BatchRow, MicroBatch, distribute_rows, grpo_updates, sft_rows
from rstar2_train.trainer.checkpoint import CheckpointInvalid, CheckpointManifest
from rstar2_train.trainer.host_files import HostFiles
from rstar2_train.trainer.types import (
    LoadReport,
    MetricTally,
    OptimizerConfig,
    TokenSequence,
    TrainConfig,
    TrainState,
)
from rstar2_train.trainer.update_metrics import Metrics, common_metrics, grpo_metrics
from rstar2_train.weights import version_store
from rstar2_train.weights.adapter_folder import AdapterIdentity
from rstar2_train.weights.experimental import offer_channel
from rstar2_train.weights.experimental.offer_channel import ChannelAddress
from rstar2_train.weights.experimental.transfer import Offer
from rstar2_train.weights.route_format import RouteFormat
from rstar2_train.weights.version_store import VersionManifest

log = logging.getLogger(__name__)


class TrainerGroup:
    """One policy and its optimiser over `ranks` processes.

    Every method raises RanksLost (retryable) when the process of a rank crashes. After any error the group is unusable.
    """

    def __init__(
        self,
        *,
        ranks: int,
        config: TrainConfig,
        ray_address: str | None = None,
        gpus_per_rank: float = 0,
        bucket: HostBucket | None = None,
        start_ranks: Callable[..., RankActors] = RankActors,
    ) -> None:
        """Start the ranks.

        Args:
            ranks: number of processes, at least 1.
            config: settings of the computation.
            ray_address: a Ray cluster to join; None starts a private one on this machine.
            gpus_per_rank: accelerators that Ray reserves for each rank.
            bucket: of hosts with disks of their own, which read their files from it; None: a common disk.
            start_ranks: starts the ranks, with the arguments of RankActors.
        """
        if ranks < 1:
            raise ValueError(f"ranks must be at least 1, not {ranks}")
        self._config = config
        self._ranks = start_ranks(ranks=ranks, config=config, ray_address=ray_address, gpus_per_rank=gpus_per_rank)
        self._files = HostFiles(self._ranks, bucket)
        self._model_dir: Path | None = None
        self._offers: ChannelAddress | None = None
        """Where rank 0 answers requests for collective transfers; None before the first offered version."""
        self._libraries: set[str] = set()
        self._layout: Layout | None = None
        self._adapter: AdapterIdentity | None = None
        self._routes: RouteFormat | None = None
        """The experts of a token, if the model is a mixture."""
        self._uncompiled = 0.0
        """Functions that torch no longer compiles."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        return self._ranks.pids

    def load(self, model_dir: Path, *, optimizer: OptimizerConfig) -> None:
        """Load a model folder (config, safetensors, tokenizer) with a fresh optimiser.

        Raises ModelRefused if the trainer does not compute the model exactly.
        """
        for folder in filter(None, (model_dir, self._config.reference)):
            self._files.provide(folder)
        report: LoadReport = self._ranks.call("load", model_dir, optimizer)[0]
        self._model_dir, self._layout, self._adapter = model_dir, report.layout, report.adapter
        self._routes = RouteFormat.of_folder(model_dir)
        log.info("layout of the training step: %s", report.layout)
        log.info("attention: %s; layers: %s", report.attention, "compiled" if report.compiled else "not compiled")
        small = "no small model of the class" if report.family_difference is None else f"{report.family_difference:.1g}"
        log.info("log-probabilities differ from transformers by %.1g nats (mean; %s)", report.difference, small)

    def restore(self, checkpoint_dir: Path, reset_optimizer: bool = False) -> TrainState:
        """Verify a checkpoint, each rank a share of its files, and load its weights and optimiser. Call `load` before.

        Hosts without a common disk read and verify only the parts that their ranks need.

        Args:
            checkpoint_dir: a folder that `save` wrote, with any number of ranks.
            reset_optimizer: load only the weights.

        Raises:
            CheckpointInvalid: names the file that is missing or damaged.
            StageFailed: for another adapter, or another base of it.
        """
        remote = {stored.name: stored.size for stored in read_host_objects(checkpoint_dir)}
        manifest = checkpoint.read_manifest(checkpoint_dir, remote)
        checkpoint.check_adapter(checkpoint_dir, manifest.adapter, loaded=self._adapter)
        if damage := checkpoint.find_damage(checkpoint_dir, manifest, manifest.files.keys() & {checkpoint.INDEX}):
            raise CheckpointInvalid(damage)  # before a rank reads it
        needed = partial(self._ranks.call, "needed_blocks", checkpoint_dir, reset_optimizer, BLOCK_BYTES)
        with self._files.checkpoint(checkpoint_dir, manifest.files, needed) as names:
            args = [(checkpoint_dir, manifest, files) for files in names]
            if damages := list(filter(None, self._ranks.call_each("find_damage", args))):
                raise CheckpointInvalid(damages[0])
            self._ranks.call("restore", checkpoint_dir, reset_optimizer)
        return TrainState(step=manifest.step, extra=manifest.extra)

    def sft_step(self, sequences: Sequence[TokenSequence], *, lr: float) -> Metrics:
        """Run one supervised update; the loss is the mean over all trained tokens of the batch.

        Returns:
            loss (nats per token), grad_norm, entropy, tokens (trained), sequences, update_skipped, lr, seconds,
            tokens_per_second (all tokens, prompts included).
        """
        started = time.perf_counter()
        rows = sft_rows(sequences)
        shares = self._distribute(rows)
        tally = self._merge(self._ranks.call_each("sft", [(share, lr) for share in shares]))
        metrics = common_metrics(tally, lr=lr, all_tokens=sum(map(len, rows)), seconds=time.perf_counter() - started)
        return metrics | {"sequences": float(len(rows))}

    def sft_loss(self, sequences: Sequence[TokenSequence]) -> float:
        """Return the mean loss of all trained tokens, in nats, without an update: of held-out conversations."""
        shares = self._distribute(sft_rows(sequences))
        return float(sum(self._ranks.call_each("sft_loss", [(share,) for share in shares])))

    def grpo_step(
        self, groups: Sequence[Sequence[TokenSequence]], *, lr: float, settings: GRPOSettings, seed: int
    ) -> Metrics:
        """Run one GRPO step (eq. 6) over the kept groups, in `settings.updates_per_step` updates.

        Args:
            groups: the kept rollouts of each prompt, with their advantages.
            lr: learning rate of every update of the step.
            settings: clip range, temperature, importance correction, updates.
            seed: determines the update of each group.

        Returns:
            The metrics of `common_metrics` and `grpo_metrics`, with sequences, groups and updates.
        """
        started = time.perf_counter()
        if settings.router_replay and self._routes is not None:
            _check_routes([sequence for group in groups for sequence in group], self._routes)
        if settings.objective.source:
            self._files.provide(Path(settings.objective.source))
        updates = grpo_updates(groups, updates=settings.updates_per_step, seed=seed)
        by_update = [self._distribute([row for group in update for row in group]) for update in updates]
        by_rank = [[shares[rank] for shares in by_update] for rank in range(self._ranks.count)]
        tally = self._merge(self._ranks.call_each("grpo", [(share, lr, settings) for share in by_rank]))
        tally.sums["loss"] /= len(updates)
        rows = [row for update in updates for group in update for row in group]
        metrics = common_metrics(tally, lr=lr, all_tokens=sum(map(len, rows)), seconds=time.perf_counter() - started)
        counts = {"sequences": float(len(rows)), "groups": float(len(groups)), "updates": float(len(updates))}
        return metrics | grpo_metrics(tally) | counts

    def snapshot_state(self) -> None:
        """Copy weights, optimiser and generators into host memory, for `write_checkpoint`."""
        self._ranks.call("snapshot_state")

    def write_checkpoint(
        self, checkpoint_dir: Path, *, step: int, extra: dict[str, Any], check: Callable[[], None] = lambda: None
    ) -> None:
        """Write the snapshot as a checkpoint: complete or absent. Replaces an existing one.

        May run in another thread during any other call: the copy does not change.

        Args:
            checkpoint_dir: the folder to create, such as `checkpoint_path(directory, step)`.
            step: the number of finished steps.
            extra: JSON values that `restore` returns, such as the step history.
            check: called before the folder becomes visible; raises if it must not.

        Raises:
            StageFailed: StorageFull (not retryable: free some space first); no partial files are left. As of
                `HostFiles.upload`, whose end this call waits for.
        """
        checkpoint.remove_asides(checkpoint_dir.parent)
        with checkpoint.write_folder(checkpoint_dir, durable=True) as folder:
            with self._files.created(folder):
                parts = self._ranks.call_background("write_checkpoint", folder)
                self._files.upload(folder, [list(part) for part in parts])
            files = {name: seal for part in parts for name, seal in part.items()}
            manifest = CheckpointManifest(
                step=step, extra=extra, ranks=self._ranks.count, files=files, adapter=self._adapter
            )
            checkpoint.write_manifest(folder, manifest)
            check()

    def export(self, model_dir: Path, *, for_engines: bool = False, stop_ids: Sequence[int] = ()) -> None:
        """Write the policy as a model folder that transformers and vLLM load: complete or absent.

        Args:
            model_dir: the folder to create; an existing one is replaced.
            for_engines: write a weight version, in the format `version_dtype` and without fsync.
            stop_ids: tokens that end a turn, for the generation config of a final model.
        """
        source = self.model_dir
        with checkpoint.write_folder(model_dir, durable=not for_engines) as folder, self._files.gathered(folder):
            self._ranks.call("export", source, folder, list(stop_ids), for_engines)

    def start_versions(self) -> None:
        """Start a chain of weight versions: the next `publish` must write a snapshot."""
        self._ranks.call("start_versions", self.model_dir)

    def publish(self, folder: Path, *, version: str, version_id: str, base: str | None) -> VersionManifest:
        """Write a weight version, all ranks at the same time: complete or absent. Call `start_versions` before.

        Args:
            folder: the folder to create.
            version: the weight version that engines report.
            version_id: id of this version of this run.
            base: id of the last published version; None writes a snapshot.

        Raises:
            StageFailed: StorageFull; no files are left, and the base of the next version stays the same.
            ValueError: if `base` is not the last published version.
        """
        with checkpoint.write_folder(folder, durable=False) as aside:
            with self._files.gathered(aside):
                files = self._ranks.call("write_version", aside, base)
            manifest = VersionManifest(version_id, version, base, files)
            version_store.write_manifest(aside, manifest)
        self._ranks.call("commit_version", version_id)
        return manifest

    def publish_adapter(self, folder: Path, *, version: str, version_id: str) -> VersionManifest:
        """Write the adapter as a weight version: complete or absent.

        Args:
            folder: the folder to create.
            version: the weight version that engines report.
            version_id: id of this version of this run.

        Raises:
            StageFailed: StorageFull; no files are left.
            ValueError: if the ranks train the whole model.
        """
        with checkpoint.write_folder(folder, durable=False) as aside:
            with self._files.gathered(aside):
                files = self._ranks.call("write_adapter", self.model_dir, aside)[0]
            manifest = VersionManifest(version_id, version, None, files)
            version_store.write_manifest(aside, manifest)
        return manifest

    def serve_transfers(self) -> None:
        """Let rank 0 answer `start_transfer` and `release_weights`, also during an update."""
        if self._offers is None:
            self._offers = self._ranks.call_first("serve_transfers")

    def start_transfer(self, folder: Path, *, workers: int, seconds: float) -> Offer:
        """Start a transfer of a published version to one engine. Call `serve_transfers` before.

        Args:
            folder: of the version.
            workers: processes of the engine that hold a part of the model.
            seconds: deadline of each phase.

        Raises:
            StageFailed: RanksLost if rank 0 has gone.
            OSError: if rank 0 cannot read the files.
        """
        reply = self._request({"folder": str(folder), "workers": workers, "seconds": seconds})
        if "error" in reply:
            raise OSError(reply["error"])
        assert self._offers is not None
        return Offer(self._offers.host, reply["port"], workers, seconds)

    def release_weights(self, folder: Path) -> None:
        """Let rank 0 drop the files of a version, unless it holds another one. Raises RanksLost.

        Logs the library of the transfers, gloo, NCCL or RCCL, when it or its reason is new.
        """
        for library in self._request({"release": str(folder)})["libraries"]:
            if library not in self._libraries:
                self._libraries.add(library)
                log.info("weights travel over %s", library)

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._offers is None:
            raise RuntimeError("rank 0 does not answer: call serve_transfers() first")
        try:
            return offer_channel.request(self._offers, message)
        except (OSError, EOFError) as error:
            raise RanksLost(f"rank 0 offers no weights: {error or type(error).__name__}") from error

    def score(self, rows: list[list[int]]) -> tuple[list[list[float]], list[list[int]]]:
        """Return the log-probability of each token of `rows` after its first, and the fingerprint of the weights.

        Two versions whose stored weights are equal have the same fingerprint.
        """
        results = self._ranks.call("score", self.model_dir, rows)
        return results[0][0], [sums for _, sums in results]

    def sleep(self) -> None:
        """Move the memory of the ranks to the host; until `wake_up` no method may use the model."""
        self._ranks.call("sleep")

    def wake_up(self) -> None:
        """Move the memory of the ranks back to their devices."""
        self._ranks.call("wake_up")

    @property
    def model_dir(self) -> Path:
        """The model folder that `load` read. Raises RuntimeError before it."""
        if self._model_dir is None:
            raise RuntimeError("no model is loaded: call load() first")
        return self._model_dir

    @property
    def version_dtype(self) -> str:
        """Number format of weight versions: float32 if ranks and engines compute in it, else that of config.json."""
        return "float32" if self._config.float32_versions else stored_dtype_name(read_config(self.model_dir))

    @property
    def probe_tolerance(self) -> float:
        """Largest mean difference of an engine's log-probabilities to the ranks' at a version, in nats."""
        return self._config.probe_tolerance(self.version_dtype)

    @property
    def adapter(self) -> AdapterIdentity:
        """The adapter that the ranks train. Raises RuntimeError if they train the whole model, or before `load`."""
        if self._adapter is None:
            raise RuntimeError("the ranks train no adapter")
        return self._adapter

    @property
    def layout(self) -> Layout:
        """The distribution of a step over ranks and memory. Raises RuntimeError before `load`."""
        if self._layout is None:
            raise RuntimeError("no model is loaded: call load() first")
        return self._layout

    def close(self) -> None:
        """Stop the ranks and the private Ray. A second call has no effect."""
        self._ranks.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _distribute(self, rows: Sequence[BatchRow]) -> list[list[MicroBatch]]:
        return distribute_rows(
            rows,
            ranks=self._ranks.count,
            tokens_per_micro_batch=self.layout.tokens,
            packed=self._config.packed,
        )

    def _merge(self, tallies: list[MetricTally]) -> MetricTally:
        merged = MetricTally()
        for tally in tallies:
            merged.add(tally)
        uncompiled = merged.maxima.get("uncompiled", 0.0)
        if uncompiled > self._uncompiled:
            log.warning("torch stopped to compile %d functions of the layers: steps are slower from now on", uncompiled)
            self._uncompiled = uncompiled
        return merged


def _check_routes(sequences: Sequence[TokenSequence], form: RouteFormat) -> None:
    """Raise StageFailed if the experts of a token are missing that a sampled token depends on."""
    for sequence in sequences:
        last = int(np.flatnonzero(sequence.mask)[-1]) if sequence.mask.any() else 0
        missing = form.missing(sequence.routes, last)
        if missing:
            raise StageFailed(
                "BadData",
                f"a rollout of {len(sequence.ids)} tokens lacks the experts of {missing} tokens that the engine chose: "
                "delete the trajectory files of the steps that are not trained yet, or set grpo.routerReplay: false",
                retryable=False,
            )
