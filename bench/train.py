"""Measures the product's training step on this machine: no Ray, and no library but torch, transformers, safetensors.

    python -m bench.train --shape 8b-12k          one GPU, random weights, forward and backward of one packed sequence
    torchrun --nproc-per-node 8 -m bench.train    several ranks

Layers, memory and kernels are chosen as in a job (`Auto`). Prints JSON: tokens per second of all ranks, MFU
(recomputation is not work), peak memory, graph breaks, and the layout.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bench.step_settings import SETTINGS
from rstar2_train.capacity.layout import Machine, choose_layout
from rstar2_train.capacity.memory import FLOAT32
from rstar2_train.capacity.model_shape import shape_of
from rstar2_train.trainer.batching import BatchRow, distribute_rows
from rstar2_train.trainer.device import select_device
from rstar2_train.trainer.model import shard_policy
from rstar2_train.trainer.step import grpo_backward
from rstar2_train.trainer.types import TokenSequence

QWEN3 = {
    **{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 8, "head_dim": 128},
    **{"vocab_size": 151_936, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1e6},
}
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "4b-16k": (
        {**QWEN3, "num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32,
         "tie_word_embeddings": True},
        16_384,
    ),
    "8b-12k": (
        {**QWEN3, "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12_288, "num_attention_heads": 32,
         "tie_word_embeddings": False},
        12_288,
    ),
    "cpu": (
        {**QWEN3, "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 32_768, "tie_word_embeddings": True},
        1024,
    ),
}  # fmt: skip
"""config.json, and tokens of the sequence."""


def main() -> None:
    """Measure the shape of the command line, and print the result at rank 0."""
    accelerated = torch.cuda.is_available()
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="8b-12k" if accelerated else "cpu", help="model and tokens")
    parser.add_argument("--sequences", type=int, default=1, help="sequences of a micro-batch, together as many tokens")
    parser.add_argument("--micro-batches", type=int, default=2, help="micro-batches per rank and update")
    parser.add_argument("--updates", type=int, default=3, help="timed updates, after one to warm up")
    parser.add_argument("--chunk", type=int, default=2048, help="logprobChunkTokens")
    parser.add_argument("--peak-tflops", type=float, default=790.0, help="peak of the device, for MFU (H200: 790)")
    options = parser.parse_args()
    if accelerated:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if "RANK" in os.environ:
        dist.init_process_group("cpu:gloo,cuda:nccl" if accelerated else "gloo")
    else:
        backend = "cpu:gloo,cuda:nccl" if accelerated else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    result = measure(options)
    if dist.get_rank() == 0:
        print(json.dumps(result, indent=1))
    dist.barrier()
    dist.destroy_process_group()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of the updates of one shape."""
    config, tokens = SHAPES[options.shape]
    accelerated, ranks = torch.cuda.is_available(), dist.get_world_size()
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if accelerated:
        compute = select_device("NVIDIA", dtype="BFloat16", index=index)
    else:
        compute = select_device("None", dtype="Float32", index=index)
    shape = shape_of(config, name=options.shape)
    free = torch.cuda.mem_get_info()[0] if accelerated else 8 * 2**30
    # Only forward and backward pass are measured: the moments of the optimiser are not in memory.
    machine = Machine(
        ranks=ranks,
        ranks_per_host=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        memory=free + 2 * FLOAT32 * shape.parameters / ranks,
        value_bytes=compute.dtype.itemsize,
        accelerated=accelerated,
    )
    layout = choose_layout(
        shape, machine, chunk=options.chunk, tokens=tokens, checkpointing=None, sharding="Auto", offload=False
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        policy = shard_policy(
            Path(folder), compute=compute, chunk=options.chunk, layout=layout, packed=True, compiled=accelerated
        )
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    length = tokens // options.sequences
    batches = distribute_rows(
        [_row(length, shape.vocabulary, seed) for seed in range(ranks * options.micro_batches * options.sequences)],
        ranks=ranks,
        tokens_per_micro_batch=tokens,
        packed=True,
    )[dist.get_rank()]
    seconds = []
    for number in range(1 + options.updates):
        if number == 1 and accelerated:
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        grpo_backward(policy, batches, compute.device, settings=SETTINGS, start=None)
        policy.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
    best = min(seconds[1:])
    done = len(batches) * options.sequences * length
    flops = 3 * shape.forward_flops(done, len(batches) * options.sequences * length**2)
    return {
        "shape": options.shape,
        "parameters": shape.parameters,
        "tokens": done * ranks,
        "seconds": best,
        "tokens_per_s": done * ranks / best,
        "mfu": flops / best / (options.peak_tflops * 1e12) if accelerated else None,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if accelerated else None,
        "graph_breaks": sum(torch._dynamo.utils.counters["graph_break"].values()),
        "layout": dataclasses.asdict(layout),
        "device": torch.cuda.get_device_name() if accelerated else "cpu",
        "torch": torch.__version__,
    }


def _row(length: int, vocabulary: int, seed: int) -> BatchRow:
    ids = np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)
    sequence = TokenSequence(
        ids,
        np.arange(length) > 0,
        advantage=1.0 if seed % 2 else -1.0,
        engine_logprobs=np.zeros(length, dtype=np.float32),
    )
    return BatchRow(sequence, sft_weight=1.0 / length)


if __name__ == "__main__":
    main()
