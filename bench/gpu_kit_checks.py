"""The checks of `make gpu-kit`, one per process. Needs only torch, transformers, safetensors and NumPy.

Each returns its figures and whether they are within the limits that it names. `main` writes them, with `verdict`, to
the file of the variable GPU_KIT_OUTPUT. Started by torchrun, all ranks run the check together.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.step_settings import SETTINGS
from rstar2_train.capacity.layout import Layout, Machine, choose_layout, layout_bytes
from rstar2_train.capacity.model_shape import ModelShape, shape_of
from rstar2_train.trainer import attention, self_check, sharded_state, step, varlen
from rstar2_train.trainer.batching import BatchRow, distribute_rows
from rstar2_train.trainer.compilation import CompilationWatch
from rstar2_train.trainer.device import ComputeDevice, select_device
from rstar2_train.trainer.logprobs import token_logprobs
from rstar2_train.trainer.model import Policy, named_shards, shard_policy
from rstar2_train.trainer.optimizer import make_optimizer, update
from rstar2_train.trainer.shard_writer import ShardWriter
from rstar2_train.trainer.sleeping_memory import SleepingMemory
from rstar2_train.trainer.types import OptimizerConfig, TokenSequence

if TYPE_CHECKING:  # pydantic is not needed here
    from rstar2_train.api.roles import Vendor

DRY = "--dry" in sys.argv
RANK, RANKS = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
_QWEN3 = {
    **{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 8, "head_dim": 128},
    **{"vocab_size": 151_936, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "dtype": "bfloat16"},
}
SHAPES: dict[str, dict[str, Any]] = {
    "0.6b": {"num_hidden_layers": 28, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16},
    "4b": {"num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32},
    "8b": {"num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12_288, "num_attention_heads": 32},
    "dry": {"num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 997},
}
CHUNK = 2048
USABLE = 0.92
"""Share of the device's memory that a step may be predicted to need."""


def machine(_: ComputeDevice) -> dict[str, Any]:
    """Name the device and the versions, and measure the peak of its 16-bit products."""
    name = "cpu" if DRY else torch.cuda.get_device_name()
    memory = 0.0 if DRY else torch.cuda.get_device_properties(0).total_memory / 1e9
    return {
        **{"device": name, "memory_GB": memory, "torch": torch.__version__, "transformers": transformers.__version__},
        "hip": torch.version.hip or "",
        "varlen_parameters": sorted(varlen.PARAMETERS),
        "matmul_TFLOPs": matmul_flops() / 1e12,
        "ok": True,
    }


def logits(compute: ComputeDevice) -> dict[str, Any]:
    """Log-probabilities and gradients from 16-bit weights against float64, at the vocabulary of Qwen3."""
    tokens, width, vocabulary = (64, 32, 997) if DRY else (3000, 1024, 151_936)
    device = compute.device
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, device=device, dtype=torch.bfloat16).requires_grad_()
    head = (torch.randn(vocabulary, width, device=device) * 0.05).to(torch.bfloat16).requires_grad_()
    targets, slope = torch.randint(vocabulary, (tokens,), device=device), torch.randn(tokens, device=device)
    actual, _ = token_logprobs(hidden=hidden, head=head, targets=targets, chunk=1024, temperature=0.8)
    gradients = torch.autograd.grad((actual * slope).sum(), [hidden, head])
    wide, wide_head = (each.detach().double().requires_grad_() for each in (hidden, head))
    expected, of_hidden, of_head = [], [], torch.zeros_like(wide_head)
    for rows in torch.arange(tokens, device=device).split(500):
        table = (wide[rows] @ wide_head.t() / 0.8).log_softmax(-1)
        part = table.gather(1, targets[rows, None])[:, 0]
        first, second = torch.autograd.grad((part * slope[rows]).sum(), [wide, wide_head])
        of_hidden.append(first[rows])
        of_head += second
        expected.append(part.detach())
    error = float((actual - torch.cat(expected)).abs().max())
    relative = {"hidden": _relative(gradients[0], torch.cat(of_hidden)), "head": _relative(gradients[1], of_head)}
    return {"error_nats": error, "gradients": relative, "ok": error < 1e-3 and max(relative.values()) < 1e-2}


def attention_check(compute: ComputeDevice) -> dict[str, Any]:
    """Packed attention, eager and compiled, against one float32 call per sequence; and the number of graphs."""
    heads, kv_heads, width, window = 8, 2, 128, 64
    config = transformers.Qwen3Config(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width)
    obstacle = varlen.find_obstacle(config, compute.device, torch.bfloat16)
    watch = CompilationWatch()

    def layer(q: Tensor, k: Tensor, v: Tensor, packing: Any, limit: int | None) -> Tensor:
        options = {"scaling": width**-0.5, "packing": packing, "sliding_window": limit}
        return attention.attend(None, q * 1.5, k, v, None, **options)[0] * 2

    compiled = torch.compile(layer, backend="eager" if DRY else "inductor")
    errors: dict[str, float] = {}
    for number in range(1, 15):
        draw = random.Random(number)
        lengths = tuple(draw.randint(3, 40 if DRY else 700) for _ in range(number))
        limit = None if number % 2 else window
        shapes = ((heads, sum(lengths)), (kv_heads, sum(lengths)), (kv_heads, sum(lengths)))
        inputs = [torch.randn(1, *each, width, device=compute.device, dtype=torch.bfloat16) for each in shapes]
        inputs = [each.requires_grad_() for each in inputs]
        slope = torch.randn(1, sum(lengths), heads, width, device=compute.device)
        wide = [each.detach().float().requires_grad_() for each in inputs]
        parts = zip(*(each.split(lengths, 2) for each in wide), strict=True)
        expected = torch.cat([_plain_attention(q * 1.5, k, v, limit) * 2 for q, k, v in parts], 2).transpose(1, 2)
        wanted = [expected, *torch.autograd.grad((expected * slope).sum(), wide)]
        packing = attention.packing_of(lengths, compute.device, kernel=obstacle is None)
        q, k, v = inputs
        for name, function in (("eager", layer), ("compiled", compiled)):
            output = function(q, k, v, packing, limit)
            actual = [output, *torch.autograd.grad((output.float() * slope).sum(), inputs)]
            worst = max(_relative(each, right) for each, right in zip(actual, wanted, strict=True))
            errors[name] = max(errors.get(name, 0.0), worst)
    figures = {"kernel": obstacle or "used", "errors": errors, "graphs": watch.graphs, "given_up": watch.given_up}
    has_kernel = obstacle is None or DRY or torch.version.hip is not None  # builds for ROCm have none
    return figures | {"ok": max(errors.values()) < 2e-2 and not watch.given_up and has_kernel}


def families(compute: ComputeDevice) -> dict[str, Any]:
    """The self-check of several classes with these versions: packed on the CPU, and 16-bit weights on the device."""
    classes = {
        "Qwen3": transformers.Qwen3Config(),
        "Llama": transformers.LlamaConfig(),
        "Gemma 2": transformers.Gemma2Config(),
        "Gemma 3": transformers.Gemma3TextConfig(),
        "Granite": transformers.GraniteConfig(logits_scaling=8.0),
    }
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for family, config in classes.items():
            folder = Path(name) / family
            config.save_pretrained(folder)
            try:
                differences = self_check.check_family(folder, packed=True)
                figures[family] = None if differences is None else differences.largest
            except ValueError as error:
                figures[family] = str(error)
        policy, _ = _policy("0.6b", compute, _layout(1024))
        device = self_check.check_weights(policy, compute, packed=True)
    ok = all(isinstance(value, float) for value in figures.values())
    return {"family_nats": figures, "device_mean_nats": device.mean, "ok": ok}


def state(compute: ComputeDevice) -> dict[str, Any]:
    """Switches of the device, a checkpoint during an update, and the changes of a version, of 0.6B parameters."""
    layout = _layout(256 if DRY else 8192)
    policy, shape = _policy("0.6b", compute, layout)
    optimizer = make_optimizer(policy, OptimizerConfig())
    batches = _batches(shape, layout.tokens, 1 if DRY else 4)
    rows = [[random.Random(n).randrange(shape.vocabulary) for _ in range(32)] for n in range(4)]

    def train(lr: float) -> None:
        step.grpo_backward(policy, batches, compute.device, settings=SETTINGS, start=None)
        update(policy, optimizer, lr=lr, grad_clip=1.0)

    def score() -> list[list[float]]:
        return step.row_logprobs(policy, rows, compute.device)

    figures: dict[str, Any] = {}
    train(1e-6)
    before, memory = score(), SleepingMemory(compute.device)
    figures["sleep_s"], _ = _timed(lambda: memory.sleep(policy, optimizer))
    figures["asleep_GB"] = 0.0 if DRY else torch.cuda.memory_allocated() / 1e9
    figures["wake_up_s"], _ = _timed(memory.wake_up)
    figures["scores_equal"] = before == score()
    buffers: dict[str, Tensor] = {}
    figures["first_copy_s"], _ = _timed(lambda: sharded_state.snapshot(policy, optimizer, buffers))
    figures["copy_s"], copy = _timed(lambda: sharded_state.snapshot(policy, optimizer, buffers))
    at_copy = score()
    writer = ShardWriter(rank=0, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as name:
        folder, group = Path(name), dist.new_group(backend="gloo")
        writing = threading.Thread(target=sharded_state.write, args=(folder, copy, group))
        writing.start()
        train(1e-3)
        writing.join()
        figures["step_changed"] = score() != at_copy
        sharded_state.restore(folder, policy, optimizer)
        figures["restored_equal"] = score() == at_copy
    with tempfile.TemporaryDirectory() as name:
        folder, shards = Path(name), named_shards(policy)
        stored = 2 * shape.parameters / 1e9
        seconds, _ = _timed(lambda: writer.write(folder, shards, base=None))
        writer.commit("1")
        figures["snapshot_GB_per_s"] = stored / seconds
        train(1e-6)
        seconds, _ = _timed(lambda: writer.write(folder, shards, base="1"))
        figures["delta_GB_per_s"] = stored / seconds
        figures["delta_share"] = sum(file.stat().st_size for file in folder.iterdir()) / 1e9 / stored
    equal = figures["scores_equal"] and figures["restored_equal"] and figures["step_changed"]
    return figures | {"ok": equal and figures["asleep_GB"] < 1}


def speed(compute: ComputeDevice) -> dict[str, Any]:
    """One update of packed sequences as a stage runs it: tokens per second, MFU, and memory against that of `plan`."""
    name, longest = sys.argv[2], 128 if DRY else int(sys.argv[3])
    shape = shape_of(_config(name), name=name)
    free = least_memory()
    layout = choose_layout(
        shape,
        Machine(ranks=RANKS, ranks_per_host=RANKS, memory=free, value_bytes=compute.dtype.itemsize, accelerated=True),
        chunk=CHUNK,
        tokens=256 if DRY else None,
        checkpointing=None,
        sharding="Auto",
        offload=False,
        longest=longest,
    )
    predicted = layout_bytes(shape, layout, value_bytes=compute.dtype.itemsize, chunk=CHUNK, accelerated=True)
    if predicted > USABLE * free:
        return {"skipped": f"needs {predicted / 1e9:.0f} GB of {free / 1e9:.0f} GB"}
    watch = CompilationWatch()
    policy, _ = _policy(name, compute, layout, compiled=True)
    optimizer = make_optimizer(policy, OptimizerConfig())
    rows = _rows(shape, layout.tokens * RANKS, longest)
    seconds, losses = [], []
    for _ in range(3):
        batches = distribute_rows(rows, ranks=RANKS, tokens_per_micro_batch=layout.tokens, packed=True)[RANK]
        started = time.perf_counter()
        tally = step.grpo_backward(policy, batches, compute.device, settings=SETTINGS, start=None)
        norm = update(policy, optimizer, lr=1e-6, grad_clip=1.0)
        _wait()
        seconds.append(time.perf_counter() - started)
        losses.append(tally.sums["loss"])
    lengths = [len(row) for row in rows]
    best = min(seconds[1:])
    flops = 3 * shape.forward_flops(sum(lengths), sum(length**2 for length in lengths)) / RANKS
    allocated, reserved = (0, 0) if DRY else (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    return {
        "tokens_per_s": sum(lengths) / best,
        "mfu": flops / best / matmul_flops(),
        "seconds_first": seconds[0],
        "seconds_step": best,
        "micro_batch": layout.tokens,
        "unchecked_layers": layout.unchecked,
        "attention": policy.attention,
        "graphs": watch.graphs,
        "given_up": watch.given_up,
        "memory_GB": {"predicted": predicted / 1e9, "allocated": allocated / 1e9, "reserved": reserved / 1e9},
        "grad_norm": norm,
        "ok": bool(np.isfinite(norm)) and not watch.given_up and (DRY or allocated <= 1.15 * predicted),
    }


def least_memory() -> float:
    """Return the free memory of the rank that has the least: all ranks need the same layout. Collective."""
    free = torch.tensor(2e10 if DRY else float(torch.cuda.mem_get_info()[0]), dtype=torch.float64)
    dist.all_reduce(free, op=dist.ReduceOp.MIN)
    return float(free)


def matmul_flops() -> float:
    """Return the operations per second of a large 16-bit product."""
    size, repeats = (256, 1) if DRY else (8192, 20)
    device = "cpu" if DRY else "cuda"
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    torch.mm(left, left)
    seconds, _ = _timed(lambda: [torch.mm(left, left) for _ in range(repeats)])
    return 2 * size**3 * repeats / seconds


def _policy(name: str, compute: ComputeDevice, layout: Layout, *, compiled: bool = False) -> tuple[Policy, ModelShape]:
    """Return a sharded policy with random weights, without files, and its shape."""
    config = _config(name)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        policy = shard_policy(
            Path(folder), compute=compute, chunk=CHUNK, layout=layout, packed=True, compiled=compiled and not DRY
        )
    torch.manual_seed(0)
    for parameter in policy.parameters():
        if parameter.ndim == 1:
            torch.nn.init.ones_(parameter)
        else:
            torch.nn.init.normal_(parameter, std=0.02)
    return policy, shape_of(config, name=name)


def _config(name: str) -> dict[str, Any]:
    tied = name in ("0.6b", "4b")
    return _QWEN3 | SHAPES["dry" if DRY else name] | {"tie_word_embeddings": tied}


def _layout(tokens: int) -> Layout:
    return Layout(ranks=RANKS, shards=RANKS, tokens=tokens, unchecked=0)


def _batches(shape: ModelShape, tokens: int, count: int) -> list[Any]:
    rows = _rows(shape, count * tokens, tokens // 2)
    return distribute_rows(rows, ranks=RANKS, tokens_per_micro_batch=tokens, packed=True)[RANK]


def _rows(shape: ModelShape, tokens: int, longest: int) -> list[BatchRow]:
    """Return rollouts whose lengths vary as real ones do; about `tokens` tokens in all."""
    draw, total = random.Random(0), 0
    rows: list[BatchRow] = []
    while total < tokens:
        length = min(longest, max(8, int(draw.lognormvariate(0, 0.7) * longest * 0.35)))
        ids = np.array([draw.randrange(shape.vocabulary) for _ in range(length)], dtype=np.int32)
        learned = np.arange(length) >= min(100, length // 2)
        engine = np.full(length, -12.0, dtype=np.float32)
        advantage = 1.0 if len(rows) % 2 else -1.0
        sequence = TokenSequence(ids, learned, advantage=advantage, engine_logprobs=engine)
        rows.append(BatchRow(sequence, sft_weight=1e-4))
        total += length
    return rows


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    distance = torch.arange(query.shape[2], device=query.device)[:, None] - torch.arange(
        key.shape[2], device=key.device
    )
    visible = (distance >= 0) & (distance < (window or key.shape[2]))
    return scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=query.shape[-1] ** -0.5)


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))


def _wait() -> None:
    if not DRY:
        torch.cuda.synchronize()


def _timed(function: Callable[[], Any]) -> tuple[float, Any]:
    _wait()
    started = time.perf_counter()
    value = function()
    _wait()
    return time.perf_counter() - started, value


CHECKS: dict[str, Callable[[ComputeDevice], dict[str, Any]]] = {
    "machine": machine,
    "logits": logits,
    "attention": attention_check,
    "families": families,
    "state": state,
    "speed": speed,
}


def main() -> int:
    """Run the check of the first argument as a rank of torchrun, or alone; return the exit code.

    The code of a rank that fails makes torchrun end the others, which would wait for it in a collective.
    """
    figures: dict[str, Any]
    output = Path(os.environ["GPU_KIT_OUTPUT"])
    try:
        vendor: Vendor = "None" if DRY else "AMD" if torch.version.hip else "NVIDIA"
        compute = select_device(vendor, dtype="Float32" if vendor == "None" else "BFloat16", index=RANK)
        store = None if "WORLD_SIZE" in os.environ else dist.HashStore()
        alone: dict[str, Any] = {} if store is None else {"store": store, "rank": 0, "world_size": 1}
        dist.init_process_group(compute.backend, **alone)
        result = CHECKS[sys.argv[1]](compute)
        verdict = "skipped" if "skipped" in result else "pass" if result.pop("ok") else "fail"
        figures = {"verdict": verdict} | result
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:  # any failure is a result
        figures = {"verdict": "fail", "error": f"{type(error).__name__}: {error}"[:800]}
        figures["traceback"] = traceback.format_exc()[-2500:]
        if not output.exists():  # another rank may have failed before, and is the cause
            output.write_text(json.dumps(figures | {"rank": RANK}))
        return 1
    if RANK == 0:
        output.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
