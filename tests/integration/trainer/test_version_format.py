"""The number format of weight versions, of one rank in this process: all bits of its weights for float32 engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from models import conversations, rank_here, write_model
from safetensors.torch import load_file

from rstar2_train.capacity.config_file import read_config
from rstar2_train.trainer.batching import distribute_rows, sft_rows
from rstar2_train.trainer.model import named_shards
from rstar2_train.weights.shard_file import ShardFile


def test_rank_versions_are_float32_as_its_weights(tmp_path: Path) -> None:
    """A version for float32 engines has all bits of the ranks, also if config.json has bfloat16; a model has not."""
    source = write_model(tmp_path / "source", tied=True, dtype="bfloat16")
    folders = [tmp_path / "version", tmp_path / "model", tmp_path / "shards"]
    for folder in folders:
        folder.mkdir()
    with rank_here(source, float32_versions=True) as rank:
        rank.sft(distribute_rows(sft_rows(conversations(5)), ranks=1, tokens_per_micro_batch=256)[0], 1e-2)
        rank.export(source, folders[0], for_engines=True)
        rank.export(source, folders[1])
        rank.start_versions(source)
        digest = rank.write_version(folders[2], None).digest
        _, sums = rank.score(source, [[1, 2, 3]])
        assert rank.policy is not None
        trained = {name: shard.full_tensor().detach() for name, shard in named_shards(rank.policy).items()}
    version, model = (load_file(folder / "model.safetensors") for folder in folders[:2])
    stored = {shard.name: shard for shard in ShardFile.read(folders[2] / "rank-0000.shards", digest=digest).shards()}
    for name, value in trained.items():
        assert torch.equal(version[name], value)
        assert torch.equal(model[name], value.bfloat16())
        assert np.array_equal(stored[name].values.view(np.float32), value.flatten().numpy())
    assert sorted(sums) == sorted(shard.checksum for shard in stored.values())
    assert [read_config(folder)["dtype"] for folder in folders[:2]] == ["float32", "bfloat16"]
