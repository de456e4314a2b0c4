"""Shared by the trainer tests: a toy model, toy batches, and a rank inside the test's own process."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.ray_runtime import LOOPBACK
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import OptimizerConfig, TokenSequence, TrainConfig
from tests.support.token_arrays import token_sequence

VOCABULARY = 61
CONFIG = TrainConfig(tokens_per_micro_batch=256, logprob_chunk_tokens=16, activation_checkpointing=False, threads=1)
OPTIMIZER = OptimizerConfig()


def write_model(folder: Path, *, tied: bool = True, dtype: str = "float32", seed: int = 7, layers: int = 2) -> Path:
    """Write a random Qwen3, with a placeholder file for its tokenizer."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        # Large enough that the toy's distributions differ clearly from uniform.
        initializer_range=0.15,
    )
    Qwen3ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def write_mixture(folder: Path) -> Path:
    """Write a random Qwen3-MoE of three layers, one of them without experts; no number of ranks divides its experts."""
    torch.manual_seed(7)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_experts=5,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.15,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@contextmanager
def rank_here(model: Path | None, *, config: TrainConfig = CONFIG, **changes: object) -> Iterator[TrainerRank]:
    """Create the only rank of a group, in this process and without Ray."""
    rank = TrainerRank(rank=0, ranks=1, config=replace(config, **changes))  # type: ignore[arg-type]
    rank.connect(LOOPBACK, rank.listen(LOOPBACK), 1)
    try:
        if model is not None:
            rank.load(model, OPTIMIZER)
        yield rank
    finally:
        rank.close()
        # This thread's cache of sharded operations keeps the process group alive. A child that another thread forks
        # would destroy the group, and wait for threads that only this process has.
        _clear_sharding_prop_cache()


def conversations(count: int, *, seed: int = 0) -> list[TokenSequence]:
    """Return sequences of 6 to 20 tokens that count upwards, which a model learns quickly."""
    draw = random.Random(seed)
    sequences = []
    for _ in range(count):
        start, length = draw.randrange(VOCABULARY), draw.randint(6, 20)
        ids = [(start + n) % VOCABULARY for n in range(length)]
        sequences.append(token_sequence(ids, [0, 0] + [1] * (length - 2)))
    return sequences


def rollout_groups(groups: int, size: int, *, seed: int = 0) -> list[list[TokenSequence]]:
    """Return random rollouts, half of each group good, with masked tokens in the place of tool output."""
    draw = random.Random(seed)

    def rollout(member: int) -> TokenSequence:
        length, prompt = draw.randint(6, 16), draw.randint(1, 6)
        return token_sequence(
            [draw.randrange(VOCABULARY) for _ in range(prompt + length)],
            [0] * prompt + [1, 1, 0, 0] + [1] * (length - 4),
            engine_logprobs=[-4.0] * (prompt + length),
            advantage=1.0 if member % 2 else -1.0,
        )

    return [[rollout(member) for member in range(size)] for _ in range(groups)]


class RanksHere:
    """One rank in the test's own process, in place of RankActors: the trainer's own code, without the start of Ray."""

    count = 1
    pids: ClassVar[list[int]] = [os.getpid()]

    def __init__(
        self, *, ranks: int = 1, config: TrainConfig = CONFIG, rank: TrainerRank | None = None, **_: object
    ) -> None:
        """`rank`: a connected rank to use; default: a new one."""
        assert ranks == 1
        self._rank = rank or TrainerRank(rank=0, ranks=1, config=config)
        if rank is None:
            self._rank.connect(LOOPBACK, self._rank.listen(LOOPBACK), 1)

    def call(self, method: str, *args: Any) -> list[Any]:
        return [getattr(self._rank, method)(*args)]

    def call_each(self, method: str, args: list[tuple[Any, ...]]) -> list[Any]:
        return self.call(method, *args[0])

    call_background = call

    def stop(self) -> None:
        self._rank.close()


def save(group: TrainerGroup, folder: Path, *, step: int, extra: dict[str, Any] | None = None) -> None:
    """Write a checkpoint of the present state, and wait for it."""
    group.snapshot_state()
    group.write_checkpoint(folder, step=step, extra=extra or {})
