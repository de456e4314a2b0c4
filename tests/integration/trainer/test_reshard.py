"""Checkpoints and exports of several ranks without Ray: other numbers of ranks, other meshes, and a killed writer."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import CONFIG, OPTIMIZER, RanksHere, conversations, save, write_mixture
from rank_processes import run_ranks
from safetensors.torch import load_file

from rstar2_train.trainer import checkpoint, export
from rstar2_train.trainer.batching import distribute_rows, sft_rows
from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.trainer_group import TrainerGroup

LR = 3e-3
KILLS = 6
"""Points of a write at which the writer is killed."""


def needed_part(trainer: TrainerRank, source: Path, target: Path) -> Path:
    """Copy the blocks of a checkpoint that a rank needs, as a host does that reads them from a bucket."""
    target.mkdir()
    shutil.copy(source / checkpoint.INDEX, target)
    copied, size = 0, 1000
    for name, blocks in trainer.needed_blocks(target, False, size).items():
        content = (source / name).read_bytes()
        with (target / name).open("wb") as file:
            for number in blocks:
                file.seek(number * size)
                copied += file.write(content[number * size : (number + 1) * size])
            file.truncate(len(content))
    whole = sum(file.stat().st_size for file in source.glob("*.distcp"))
    assert copied < (0.75 if trainer.ranks == 4 else 1.01) * whole, "2 x 2 ranks: each needs about half of the tensors"
    return target


def run_rank(rank: int, ranks: int, port: int, model: Path, source: Path | None, target: Path, per_host: int) -> float:
    """Restore `source`, write the same state to `target` with an export in several files, and train a step.

    Without `source` two steps are trained first. `per_host`: ranks of a copy of the weights. Returns the loss.
    """
    export.FILE_BYTES = 20_000
    trainer = TrainerRank(rank=rank, ranks=ranks, config=replace(CONFIG, sharding="PerHost"))
    trainer.connect("127.0.0.1", port, 1, per_host)
    assert trainer.load(model, OPTIMIZER).layout.shards == per_host

    def train(seed: int) -> float:
        rows = sft_rows(conversations(8, seed=seed))
        share = distribute_rows(rows, ranks=ranks, tokens_per_micro_batch=4096)[rank]
        return trainer.sft(share, LR).sums["loss"]

    if source is None:
        train(0)
        train(1)
    else:
        trainer.restore(needed_part(trainer, source, target / f"needed-{rank}"), False)
    trainer.snapshot_state()
    trainer.write_checkpoint(target)
    trainer.export(model, target)
    loss = train(2)
    trainer.close()
    return loss


@pytest.mark.parametrize("mixture", [False, True])
def test_checkpoint_moves_between_ranks_and_meshes(mixture: bool, model_dir: Path, tmp_path: Path) -> None:
    """2 ranks, 4 ranks as 2 x 2, 1 rank: each writes the same weights and moments, and has the same loss."""
    if mixture:
        model_dir = write_mixture(tmp_path / "mixture")
    source: Path | None = None
    losses, weights = [], []
    for ranks, per_host in ((2, 2), (4, 2), (1, 1)):
        target = tmp_path / f"{ranks}-{per_host}"
        target.mkdir()
        losses.append(sum(run_ranks(run_rank, ranks, model_dir, source, target, per_host)))
        files = sorted(target.glob("model-*-of-*.safetensors"))
        assert len(files) > 2, "the ranks write several files"
        weights.append({name: tensor for file in files for name, tensor in load_file(file).items()})
        source = target
    for each in weights[1:]:
        assert each.keys() == weights[0].keys()
        assert all(torch.equal(each[name], weights[0][name]) for name in each)
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


def killed_writer(model: Path, folder: Path, after: int, folders: list[str]) -> None:
    """Write checkpoint 1; write checkpoint 2, and kill this process at the n-th file that it opens or renames."""
    sys.path[:] = folders
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    group = TrainerGroup(ranks=1, config=CONFIG, start_ranks=RanksHere)  # type: ignore[arg-type]
    group.load(model, optimizer=OPTIMIZER)
    save(group, folder / "step-000001", step=1)
    group.sft_step(conversations(4), lr=LR)
    left = after

    def kill(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if event in ("open", "os.rename", "os.mkdir") and str(folder) in str(args[0]):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    save(group, folder / "step-000002", step=2)
    os._exit(0)


def test_killed_writer_leaves_the_last_checkpoint(model_dir: Path, tmp_path: Path) -> None:
    """After kill -9 at any point of a write the newest checkpoint is complete, and the next writer removes the rest."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers.models.qwen3.modeling_qwen3", "rstar2_train.trainer.rank"])
    folders = [path for path in sys.path if path]
    writers = []
    for number in range(KILLS):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        process = context.Process(target=killed_writer, args=(model_dir, folder, 2 * number, folders))
        process.start()
        writers.append((folder, process))
    partial = 0
    for folder, process in writers:
        process.join(900)
        assert process.exitcode == -signal.SIGKILL
        _, newest = checkpoint.list_checkpoints(folder)[-1]
        assert newest.name in ("step-000001", "step-000002")
        checkpoint.verify(newest)
        partial += bool(list(folder.glob(f"{checkpoint.ASIDE}*")))
        checkpoint.remove_asides(folder)
        assert all(path.name.startswith("step-") for path in folder.iterdir())
    assert partial >= KILLS - 2, "the kills hit the middle of the write"
