"""One GRPO update of `bench.train_compare`, in a process of its own: ours, TRL's, or naive full logits.

    python -m bench.train_step ours|trl|naive --model DIR --batch FILE --updates N [--settings JSON]

`--settings`: objective and referenceKl of a manifest's `grpo`, for `ours` only; its reference or teacher is the model.

Prints JSON: the seconds of the fastest update after the first, its loss, and the peak of the resident memory during the
updates above that before the model was loaded (MALLOC_MMAP_THRESHOLD_ returns freed memory to the system).
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers
import transformers.models.qwen3.modeling_qwen3 as qwen3

from bench.process_memory import status_kibibytes
from rstar2_train.api.stages import GRPODefaults, GRPOSettings, resolve_grpo
from rstar2_train.grpo_roc.loss import policy_loss
from rstar2_train.grpo_roc.tokens import Counts, Tokens

SETTINGS = resolve_grpo(GRPODefaults(), GRPODefaults())
"""Loss settings of all three steps; `--settings` replaces them in the step `ours`."""
LEARNING_RATE = 1e-6
BUDGET = 2048
"""Tokens of a micro-batch of this project's step."""
CHUNK = 256
PADDING = 0
Update = Callable[[], float]


def main() -> None:
    """Measure the step of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.train_step", description=__doc__)
    parser.add_argument("step", choices=["ours", "trl", "naive"])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--batch", type=Path, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--settings", type=GRPODefaults.model_validate_json, default=GRPODefaults())
    options = parser.parse_args()
    settings = resolve_grpo(GRPODefaults(), options.settings)
    if settings != SETTINGS and options.step != "ours":
        parser.error("--settings is for the step 'ours' only")
    batch = json.loads(options.batch.read_text(encoding="utf-8"))
    torch.manual_seed(0)
    prepare: dict[str, Callable[[Path, list[dict[str, Any]]], Update]] = {
        "ours": functools.partial(_ours, settings=settings),
        "trl": _trl,
        "naive": _naive,
    }
    if options.step == "trl":
        import trl  # noqa: F401  (its import is not part of the step)
    before = status_kibibytes("VmRSS")
    update = prepare[options.step](options.model, batch)
    Path("/proc/self/clear_refs").write_text("5")
    losses, seconds = [], []
    for _ in range(1 + options.updates):
        started = time.perf_counter()
        losses.append(update())
        seconds.append(time.perf_counter() - started)
    result = {"seconds": min(seconds[1:]), "peak_mib": (status_kibibytes("VmHWM") - before) / 1024, "loss": losses[0]}
    print(json.dumps(result))


def _ours(model: Path, batch: list[dict[str, Any]], *, settings: GRPOSettings) -> Update:
    from rstar2_train.capacity.layout import Machine, choose_layout
    from rstar2_train.capacity.model_shape import read_shape
    from rstar2_train.trainer.batching import distribute_rows, grpo_updates
    from rstar2_train.trainer.device import select_device
    from rstar2_train.trainer.model import load_policy
    from rstar2_train.trainer.optimizer import make_optimizer, update
    from rstar2_train.trainer.step import grpo_backward
    from rstar2_train.trainer.types import OptimizerConfig, TokenSequence

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    shape = read_shape(str(model), folder=model)
    layout = choose_layout(
        shape,
        Machine(ranks=1, ranks_per_host=1, memory=4 * 2**30, value_bytes=4, accelerated=False),
        chunk=CHUNK,
        tokens=BUDGET,
        checkpointing=None,
        sharding="Auto",
        offload=False,
    )
    compute = select_device("None", dtype="Float32")
    policy = load_policy(model, compute=compute, chunk=CHUNK, layout=layout, packed=True)
    reference = None
    if settings.has_reference:
        reference = load_policy(model, compute=compute, chunk=CHUNK, layout=layout, packed=True, trained=False)
    optimizer = make_optimizer(policy, OptimizerConfig())
    group = [
        TokenSequence(
            np.array(ids := row["prompt"] + row["completion"], np.int32),
            np.arange(len(ids)) >= len(row["prompt"]),
            engine_logprobs=np.zeros(len(ids), np.float32),
            advantage=row["advantage"],
        )
        for row in batch
    ]

    def step() -> float:
        ((rows,),) = grpo_updates([group], updates=1, seed=0)
        batches = distribute_rows(rows, ranks=1, tokens_per_micro_batch=BUDGET, packed=True)[0]
        tally = grpo_backward(policy, batches, compute.device, settings=settings, start=None, reference=reference)
        update(policy, optimizer, lr=LEARNING_RATE, grad_clip=1.0)
        return tally.sums["loss"]

    return step


def _padded(batch: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids and attention mask, prompts padded on the left and completions on the right, and the prompt width."""
    width = max(len(row["prompt"]) for row in batch)
    longest = max(len(row["completion"]) for row in batch)
    ids = torch.full((len(batch), width + longest), PADDING)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(batch):
        start, end = width - len(row["prompt"]), width + len(row["completion"])
        ids[number, start:end] = torch.tensor(row["prompt"] + row["completion"])
        mask[number, start:end] = 1
    return ids, mask, torch.tensor(width)


def _naive(model: Path, batch: list[dict[str, Any]]) -> Update:
    policy = qwen3.Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, fused=True)
    ids, mask, prompt = _padded(batch)
    width = int(prompt)
    advantages = torch.tensor([row["advantage"] for row in batch])
    trained = mask[:, width:].bool()

    def step() -> float:
        logits = policy(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, width - 1 : -1].float()
        log_p = torch.log_softmax(logits, dim=-1)
        logprobs = log_p.gather(2, ids[:, width:, None]).squeeze(2)
        with torch.no_grad():
            -(log_p.exp() * log_p).sum(dim=-1)  # the entropy, a metric of all three steps
        count = int(trained.sum())
        rows = torch.arange(len(batch))[:, None].expand(trained.shape)[trained]
        tokens = Tokens(
            logprobs=logprobs[trained],
            old_logprobs=logprobs.detach()[trained],
            advantages=advantages[rows],
            trained=torch.ones(count, dtype=torch.bool),
            sequences=rows,
            groups=torch.zeros(count, dtype=torch.int64),
            sequence_tokens=trained.sum(dim=1),
            counts=Counts(1, len(batch), count, torch.tensor([count])),
        )
        parts = policy_loss(tokens, SETTINGS)
        parts.loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return parts.loss.item()

    return step


def _trl(model: Path, batch: list[dict[str, Any]]) -> Update:
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    vocabulary = Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1, "x": 2}, unk_token="x"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=vocabulary, pad_token="<pad>", eos_token="<eos>", unk_token="x"
    )
    settings = GRPOConfig(
        output_dir=str(model.parent / "trl"),
        per_device_train_batch_size=len(batch),
        num_generations=len(batch),
        beta=0.0,
        epsilon=SETTINGS.objective.clip_low,
        epsilon_high=SETTINGS.objective.clip_high,
        loss_type="bnpo",
        temperature=1.0,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to=[],
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * len(batch)),
        processing_class=tokenizer,
    )
    policy = trainer.model
    policy.train()
    trainer.current_gradient_accumulation_steps = 1
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, fused=True)
    ids, mask, prompt = _padded(batch)
    width = int(prompt)
    inputs = {
        "prompt_ids": ids[:, :width],
        "prompt_mask": mask[:, :width],
        "completion_ids": ids[:, width:],
        "completion_mask": mask[:, width:],
        "advantages": torch.tensor([row["advantage"] for row in batch]),
        "num_items_in_batch": mask[:, width:].sum(),
    }

    def step() -> float:
        loss = trainer.compute_loss(policy, inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def write_model(folder: Path, sizes: dict[str, int], *, vocabulary: int) -> int:
    """Write a Qwen3 with random weights, and return the number of its parameters."""
    config = transformers.AutoConfig.for_model(
        "qwen3", **sizes, vocab_size=vocabulary, tie_word_embeddings=True, max_position_embeddings=4096
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return int(model.num_parameters())


def random_batch(sequences: int, vocabulary: int) -> list[dict[str, Any]]:
    """Return one group of random rollouts with lengths as in training: most of them short, some of them long."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(sequences):
        length = int(min(480, max(24, draw.lognormal(5.0, 0.7))))
        rows.append(
            {
                "prompt": draw.integers(3, vocabulary, int(draw.integers(20, 60))).tolist(),
                "completion": draw.integers(3, vocabulary, length).tolist(),
                "advantage": 1.0 if number % 2 else -1.0,
            }
        )
    return rows


if __name__ == "__main__":
    main()
