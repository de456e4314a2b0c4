"""Shared by the trainer tests: a toy model, toy batches, and a rank inside the test's own process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.ray_runtime import LOOPBACK
from rstar2_train.trainer.types import OptimizerConfig, TokenizedExample, TrainConfig, TrainSequence

VOCABULARY = 61
CONFIG = TrainConfig(tokens_per_micro_batch=256, logprob_chunk_tokens=16, activation_checkpointing=False, threads=1)
OPTIMIZER = OptimizerConfig()


def write_model(folder: Path, *, tied: bool = True, dtype: str = "float32") -> Path:
    """Write a random Qwen3 of two layers, with a placeholder file for its tokenizer."""
    torch.manual_seed(7)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
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


def conversations(count: int, *, seed: int = 0) -> list[TokenizedExample]:
    """Return sequences of 6 to 20 tokens that count upwards, which a model learns quickly."""
    draw = random.Random(seed)
    sequences = []
    for _ in range(count):
        start, length = draw.randrange(VOCABULARY), draw.randint(6, 20)
        ids = [(start + n) % VOCABULARY for n in range(length)]
        sequences.append(TokenizedExample(ids, [0, 0] + [1] * (length - 2)))
    return sequences


def rollout_groups(groups: int, size: int, *, seed: int = 0) -> list[list[TrainSequence]]:
    """Return random rollouts, half of each group good, with masked tokens in the place of tool output."""
    draw = random.Random(seed)

    def rollout(member: int) -> TrainSequence:
        length = draw.randint(6, 16)
        return TrainSequence(
            prompt_ids=[draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 6))],
            response_ids=[draw.randrange(VOCABULARY) for _ in range(length)],
            mask=[1, 1, 0, 0] + [1] * (length - 4),
            engine_logprobs=[-4.0] * length,
            advantage=1.0 if member % 2 else -1.0,
        )

    return [[rollout(member) for member in range(size)] for _ in range(groups)]
