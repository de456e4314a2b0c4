"""`make bench-memory`: the memory model of a training step (rstar2_train/capacity/memory.py) against real steps.

Each shape is a model with random weights on the CPU. Every rank is a new process with a fixed mmap threshold, so that
freed memory returns to the system. It runs a GRPO update of two micro-batches with the product's own functions. The
peak is the resident memory above that before the model was loaded. `host_memory` adds the memory of the orchestrator
over 60 steps. Results: bench/results/memory.json.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import host_memory
from bench.process_memory import status_kibibytes
from rstar2_train.api.lora import LoRASpec
from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.memory import TrainerStep, trainer_memory
from rstar2_train.capacity.model_shape import ModelShape
from rstar2_train.utils.ports import free_ports

RESULTS = Path(__file__).with_name("results") / "memory.json"
HEAD_DIM = 64
TRIM, MMAP = -1, -3
"""Options of mallopt: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""
WARM_UP = {"layers": 2, "hidden": 64, "intermediate": 128, "heads": 2, "kv_heads": 1, "vocabulary": 128, "tied": True}


def case(
    layers: int,
    hidden: int,
    intermediate: int,
    vocabulary: int,
    tied: bool,
    *,
    row: int,
    lora: LoRASpec | None = None,
    **step: int,
) -> dict[str, Any]:
    """Return one case. `row`: tokens per sequence; `lora`: train an adapter in place of the model."""
    heads = hidden // HEAD_DIM
    sizes = {"layers": layers, "hidden": hidden, "intermediate": intermediate, "heads": heads, "kv_heads": heads // 2}
    return {"sizes": {**sizes, "vocabulary": vocabulary, "tied": tied}, "row": row, "lora": lora, "step": step}


CASES = {
    "vocabulary": case(4, 256, 768, 32768, True, row=512, ranks=1, tokens=2048, chunk=256, checkpointed_layers=4),
    "vocabulary, all kept": case(
        4, 256, 768, 32768, True, row=512, ranks=1, tokens=2048, chunk=256, checkpointed_layers=0
    ),
    "layers": case(8, 512, 1536, 4096, False, row=512, ranks=1, tokens=2048, chunk=512, checkpointed_layers=8),
    "layers, all kept": case(
        8, 512, 1536, 4096, False, row=512, ranks=1, tokens=2048, chunk=512, checkpointed_layers=0
    ),
    "tokens": case(8, 512, 1536, 4096, False, row=1024, ranks=1, tokens=4096, chunk=512, checkpointed_layers=8),
    "two ranks": case(4, 512, 1536, 32768, False, row=512, ranks=2, tokens=1024, chunk=512, checkpointed_layers=4),
    "two ranks, all kept": case(
        12, 384, 1024, 16384, True, row=256, ranks=2, tokens=1024, chunk=256, checkpointed_layers=0
    ),
}


def main() -> None:
    """Measure every case; QUICK=1 measures the first three, a short stage, and writes no file."""
    quick = bool(os.environ.get("QUICK"))
    rows = [measure(name, case) for name, case in list(CASES.items())[: 3 if quick else None]]
    largest = max(abs(row["error"]) for row in rows)
    host = host_memory.measure(4 if quick else host_memory.GROUPS)
    figures = {"rows": rows, "largest_error": largest, "host_memory": host, "command": "python -m bench.memory"}
    text = json.dumps(figures, indent=1)
    if not quick:
        RESULTS.write_text(text + "\n", encoding="utf-8")
    print(text)


def measure(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """Return the measured and the predicted peak in bytes of rank 0."""
    context = multiprocessing.get_context("spawn")
    shape = ModelShape(name=name, head_dim=HEAD_DIM, qk_norm=2 * HEAD_DIM, qkv_bias=False, **case["sizes"])
    lora = case["lora"]
    adapter = None if lora is None else shape.adapter(rank=lora.rank, modules=lora.modules)
    step = TrainerStep(value_bytes=4, adapter=adapter, **case["step"])
    with tempfile.TemporaryDirectory() as folder:
        for target, sizes in (("warm-up", WARM_UP), ("model", case["sizes"])):
            writer = context.Process(target=_write_model, args=(Path(folder) / target, sizes))
            writer.start()
            writer.join()
        queue: Any = context.Queue()
        port = free_ports(1)[0]
        ranks = [
            context.Process(target=_rank, args=(rank, step, case["row"], lora, Path(folder), port, queue))
            for rank in range(step.ranks)
        ]
        for process in ranks:
            process.start()
        peaks = dict(queue.get(timeout=600) for _ in ranks)
        for process in ranks:
            process.join()
    predicted = trainer_memory(shape, step).total
    error = predicted / peaks[0] - 1
    print(f"{name}: measured {peaks[0] / 2**20:.0f} MiB, error {error:+.1%}", file=sys.stderr, flush=True)
    row = {"name": name, "shape": dataclasses.asdict(shape), "step": dataclasses.asdict(step)}
    return row | {"measured_bytes": peaks[0], "predicted_bytes": round(predicted), "error": error}


def _write_model(folder: Path, sizes: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3",
        num_hidden_layers=sizes["layers"],
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["intermediate"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        head_dim=HEAD_DIM,
        vocab_size=sizes["vocabulary"],
        tie_word_embeddings=sizes["tied"],
        max_position_embeddings=8192,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


def _rank(rank: int, step: TrainerStep, row: int, lora: LoRASpec | None, folder: Path, port: int, queue: Any) -> None:
    libc = ctypes.CDLL(None)
    libc.mallopt(MMAP, 65536)
    libc.mallopt(TRIM, 65536)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=step.ranks)
    warm_up = dataclasses.replace(step, tokens=32, chunk=64)
    _update(folder / "warm-up", warm_up, lora=lora, rank=rank, row=16, vocabulary=WARM_UP["vocabulary"])
    gc.collect()
    libc.malloc_trim(0)
    before = status_kibibytes("RssAnon") + status_kibibytes("RssShmem")
    Path("/proc/self/clear_refs").write_text("5")
    vocabulary = int(json.loads((folder / "model" / "config.json").read_text())["vocab_size"])
    _update(folder / "model", step, lora=lora, rank=rank, row=row, vocabulary=vocabulary)
    queue.put((rank, (status_kibibytes("VmHWM") - status_kibibytes("RssFile") - before) * 1024))
    dist.barrier()
    dist.destroy_process_group()


def _update(model: Path, step: TrainerStep, *, lora: LoRASpec | None, rank: int, row: int, vocabulary: int) -> None:
    """Load the model, and run an update with two full micro-batches per rank."""
    import numpy as np

    from rstar2_train.api.stages import GRPOSettings
    from rstar2_train.trainer.batching import BatchRow, distribute_rows
    from rstar2_train.trainer.device import select_device
    from rstar2_train.trainer.model import load_policy
    from rstar2_train.trainer.optimizer import make_optimizer, update
    from rstar2_train.trainer.step import grpo_backward
    from rstar2_train.trainer.types import OptimizerConfig, TokenSequence

    compute = select_device("None", dtype="Float32")
    layers = int(json.loads((model / "config.json").read_text())["num_hidden_layers"])
    layout = Layout(
        ranks=step.ranks,
        shards=step.ranks,
        tokens=step.tokens,
        unchecked=max(0, layers - step.checkpointed_layers),
    )
    policy = load_policy(model, compute=compute, chunk=step.chunk, layout=layout, adapter=lora)
    optimizer = make_optimizer(policy, OptimizerConfig())
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    generator = np.random.default_rng(0)
    learned = np.arange(row) >= max(1, row // 8)
    rows = [
        BatchRow(
            TokenSequence(
                generator.integers(0, vocabulary, row).astype(np.int32),
                learned,
                advantage=1.0,
                engine_logprobs=np.zeros(row, dtype=np.float32),
            ),
            sft_weight=1e-4,
        )
        for _ in range(2 * step.ranks * (step.tokens // row))
    ]
    batches = distribute_rows(rows, ranks=step.ranks, tokens_per_micro_batch=step.tokens)[rank]
    grpo_backward(policy, batches, compute.device, settings=GRPOSettings(), start=None)
    update(policy, optimizer, lr=1e-6, grad_clip=1.0)


if __name__ == "__main__":
    main()
