"""TrainerGroup: the trainer as the drivers see it. Synchronous; call it from a thread of an event loop.

It shares sequences out over the ranks, starts each update on all of them at once, and puts their measures together.
The ranks themselves are processes of Ray (`cluster`, `rank`); this side of them needs no torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rstar2_train.api.stages import GRPOSettings
from rstar2_train.trainer import checkpoint
from rstar2_train.trainer.actors import RankActors
from rstar2_train.trainer.batching import grpo_updates, sft_rows, share_out
from rstar2_train.trainer.checkpoint import CheckpointManifest
from rstar2_train.trainer.types import (
    MetricTally,
    Objective,
    OptimizerConfig,
    TokenizedExample,
    TrainConfig,
    TrainSequence,
    TrainState,
)

Metrics = dict[str, float]


class TrainerGroup:
    """One policy and its optimiser over `ranks` processes.

    Every method raises RanksLost (retryable) when a rank's process dies; the group is unusable after any error.
    """

    def __init__(
        self, *, ranks: int, config: TrainConfig, ray_address: str | None = None, gpus_per_rank: float = 0
    ) -> None:
        """Start the ranks.

        Args:
            ranks: processes, at least 1.
            config: how they compute.
            ray_address: a Ray cluster to join; None starts a private one on this machine.
            gpus_per_rank: accelerators that Ray reserves for each rank.
        """
        if ranks < 1:
            raise ValueError(f"ranks must be at least 1, not {ranks}")
        self._config = config
        self._ranks = RankActors(ranks=ranks, config=config, ray_address=ray_address, gpus_per_rank=gpus_per_rank)
        self._model_dir: Path | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks."""
        return self._ranks.pids

    def load(self, model_dir: Path, *, optimizer: OptimizerConfig) -> None:
        """Load a model folder (config, safetensors, tokenizer) with a fresh optimiser."""
        self._ranks.call("load", model_dir, optimizer)
        self._model_dir = model_dir

    def restore(self, checkpoint_dir: Path, reset_optimizer: bool = False) -> TrainState:
        """Take weights and optimiser from a checkpoint, which is verified first. `load` must come before.

        Args:
            checkpoint_dir: a folder that `save` wrote, with any number of ranks.
            reset_optimizer: take the weights only.

        Raises:
            CheckpointInvalid: names the file that is missing or damaged.
        """
        manifest = checkpoint.verify(checkpoint_dir)
        self._ranks.call("restore", checkpoint_dir, reset_optimizer)
        return TrainState(step=manifest.step, extra=manifest.extra)

    def sft_step(self, sequences: Items[TokenizedExample], *, lr: float) -> Metrics:
        """One supervised update; the loss is the mean over all learned tokens of the batch.

        Returns:
            loss (nats a token), grad_norm, entropy, tokens (learned), sequences, update_skipped, lr, seconds,
            tokens_per_second (all tokens, prompts included).
        """
        started = time.perf_counter()
        rows = sft_rows(sequences)
        shares = share_out(rows, ranks=self._ranks.count, tokens_per_micro_batch=self._config.tokens_per_micro_batch)
        tally = self._merge(self._ranks.call_each("sft", [(share, lr) for share in shares]))
        metrics = _common(tally, lr=lr, all_tokens=sum(len(row.ids) for row in rows), started=started)
        return metrics | {"sequences": float(len(rows))}

    def grpo_step(
        self, groups: Items[Items[TrainSequence]], *, lr: float, settings: GRPOSettings, seed: int
    ) -> Metrics:
        """One GRPO step (eq. 6) over kept groups, in `settings.updates_per_step` updates.

        Args:
            groups: for each prompt its kept rollouts, with their advantages.
            lr: learning rate of every update of the step.
            settings: clip range, temperature, importance correction, updates.
            seed: shares the groups out over the updates.

        Returns:
            loss, grad_norm (largest), clip_fraction, ratio_mean, ratio_max, approx_kl, entropy, mismatch_mean and
            mismatch_max (|log p_trainer - log p_engine| at the start of the step), correction_mean where it is on,
            tokens (learned), sequences, groups, updates, update_skipped, lr, seconds, tokens_per_second.
        """
        started = time.perf_counter()
        updates = grpo_updates(groups, updates=settings.updates_per_step, seed=seed)
        correction = settings.importance_correction
        objective = Objective(
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            temperature=settings.temperature,
            correction_cap=correction.cap if correction.enabled else None,
        )
        by_update = [
            share_out(
                [row for group in update for row in group],
                ranks=self._ranks.count,
                tokens_per_micro_batch=self._config.tokens_per_micro_batch,
            )
            for update in updates
        ]
        by_rank = [[shares[rank] for shares in by_update] for rank in range(self._ranks.count)]
        tally = self._merge(self._ranks.call_each("grpo", [(share, lr, objective) for share in by_rank]))
        tally.sums["loss"] /= len(updates)
        rows = [row for update in updates for group in update for row in group]
        metrics = _common(tally, lr=lr, all_tokens=sum(len(row.ids) for row in rows), started=started)
        tokens = tally.sums["tokens"]
        metrics |= {
            "clip_fraction": tally.sums["clipped"] / tokens,
            "ratio_mean": tally.sums["ratio"] / tokens,
            "ratio_max": tally.maxima["ratio_max"],
            "approx_kl": tally.sums["kl"] / tokens,
            "mismatch_mean": tally.sums["mismatch"] / tokens,
            "mismatch_max": tally.maxima["mismatch_max"],
            "sequences": float(len(rows)),
            "groups": float(len(groups)),
            "updates": float(len(updates)),
        }
        if "correction" in tally.sums:
            metrics["correction_mean"] = tally.sums["correction"] / tokens
        return metrics

    def save(self, checkpoint_dir: Path, *, step: int, extra: dict[str, Any]) -> None:
        """Write a checkpoint: complete or absent. One that is already there is replaced.

        Args:
            checkpoint_dir: the folder to make, best `checkpoints.checkpoint_path(directory, step)`.
            step: the step after which it is written.
            extra: JSON values to hand back on restore: data cursor, best reward, ...

        Raises:
            StageFailed: StorageFull (not retryable: someone must free space); nothing is left half-written.
        """
        checkpoint.remove_asides(checkpoint_dir.parent)
        with checkpoint.write_folder(checkpoint_dir, durable=True) as folder:
            files = {name: seal for part in self._ranks.call("save", folder) for name, seal in part.items()}
            checkpoint.write_manifest(
                folder, CheckpointManifest(step=step, extra=extra, ranks=self._ranks.count, files=files)
            )

    def export(self, model_dir: Path, *, durable: bool = True) -> None:
        """Write the policy as a model folder that transformers and vLLM load: complete or absent.

        Args:
            model_dir: the folder to make; one that is already there is replaced.
            durable: fsync it. Not needed for weights on their way to an engine.
        """
        if self._model_dir is None:
            raise RuntimeError("no model is loaded: call load() first")
        source = self._model_dir
        with checkpoint.write_folder(model_dir, durable=durable) as folder:
            self._ranks.call("export", source, folder)

    def close(self) -> None:
        """End the ranks, and the private Ray. May be called twice."""
        self._ranks.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def _merge(tallies: list[MetricTally]) -> MetricTally:
        merged = MetricTally()
        for tally in tallies:
            merged.add(tally)
        return merged


def _common(tally: MetricTally, *, lr: float, all_tokens: int, started: float) -> Metrics:
    seconds = time.perf_counter() - started
    return {
        "loss": tally.sums["loss"],
        "grad_norm": tally.maxima["grad_norm"],
        "entropy": tally.sums["entropy"] / tally.sums["tokens"],
        "tokens": tally.sums["tokens"],
        "update_skipped": tally.maxima["skipped"],
        "lr": lr,
        "seconds": seconds,
        "tokens_per_second": all_tokens / seconds,
    }
