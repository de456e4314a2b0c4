"""Measures for each family of models whether the trainer computes it as transformers does, with tiny random models.

`make bench-models` writes bench/results/models.json and the table in docs/models.md. The models are of the real
classes, with what is special in each (`tests/support/model_families.py`). Each fault of `tests/support/model_faults.py`
is seeded too: the self-check must refuse it. `bench.model_engines` compares an engine with transformers too.

`--only trainer` or `--only engines` measures one part, and keeps the figures of the other. `QUICK=1` measures a few
families, and writes no file.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers

from bench import model_engines
from bench.provenance import describe_commit, describe_machine
from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_shape import shape_of
from rstar2_train.capacity.model_support import ADAPTED, PROVEN, UnsupportedModel
from rstar2_train.trainer import self_check, step
from rstar2_train.trainer.batching import distribute_rows, sft_rows
from rstar2_train.trainer.device import ComputeDevice
from rstar2_train.trainer.model import load_policy, named_shards
from rstar2_train.trainer.optimizer import make_optimizer, update
from rstar2_train.trainer.types import OptimizerConfig, TokenSequence
from tests.support.model_families import FAMILIES, write_family
from tests.support.model_faults import FAULTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "models.json"
PAGE = ROOT / "docs" / "models.md"
START, END = "<!-- measured: start -->", "<!-- measured: end -->"
LENGTHS = (40, 1, 23, 64, 2)
QUICK = ["Llama 3", "Qwen3-MoE", "Gemma 2", "Granite 3", "Phi", "Cohere2"]
PARTS = ("trainer", "engines")
CPU = ComputeDevice(device=torch.device("cpu"), backend="gloo", dtype=torch.float32)
LAYOUT = Layout(ranks=1, shards=1, tokens=256, unchecked=99)


def measure(names: Sequence[str]) -> dict[str, Any]:
    """Return a row per family and per seeded fault of these families."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with _one_rank(), tempfile.TemporaryDirectory() as name:
        folders = [(family, Path(name) / str(number)) for number, family in enumerate(names)]
        families = [_family(family, folder) for family, folder in folders]
        faults = [_fault(fault, dict(folders)[family]) for fault, (family, _) in FAULTS.items() if family in names]
    return {"families": families, "faults": faults}


def _family(family: str, folder: Path) -> dict[str, Any]:
    """Return the differences of a family to transformers, and the change of its loss by one update."""
    reference = write_family(family, folder)
    config = json.loads((folder / "config.json").read_text())
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, config["vocab_size"], (length,), generator=generator) for length in LENGTHS]
    with torch.no_grad():
        expected = torch.cat([self_check.row_logprobs(reference(row[None]).logits[0], row) for row in rows])
    row: dict[str, Any] = {"family": family, "model_type": config["model_type"], "class": type(reference).__name__}
    for packed in (False, True):
        policy = load_policy(folder, compute=CPU, chunk=16, layout=LAYOUT, packed=packed, longest=max(LENGTHS))
        with torch.no_grad():
            actual = self_check.scored(policy, rows, packed=packed)
        row["packed" if packed else "padded"] = float((actual - expected).abs().max())
        try:
            differences = self_check.check_family(folder, packed=packed)
            refusal = None if differences is not None else "no small model of this class"
        except UnsupportedModel as error:
            refusal = str(error)
        if refusal:
            row["packed_refused" if packed else "refused"] = refusal
    row["loss_change"] = _loss_change(folder, packed="packed_refused" not in row)
    try:
        shape = shape_of(config, name=family)
        row["parameters"] = sum(parameter.numel() for parameter in named_shards(policy).values())
        row["planned_parameters"] = shape.parameters
    except ValueError as error:
        row["plan_refused"] = str(error)
    return row


def _loss_change(folder: Path, *, packed: bool) -> float:
    """Return how much one update lowers the loss of its own sequences, in nats per token."""
    policy = load_policy(folder, compute=CPU, chunk=16, layout=LAYOUT, packed=packed, longest=max(LENGTHS))
    optimizer = make_optimizer(policy, OptimizerConfig())
    generator = torch.Generator().manual_seed(2)
    ids = [torch.randint(3, 90, (length,), generator=generator).int().numpy() for length in (20, 30)]
    examples = [TokenSequence(each, np.ones(len(each), dtype=bool)) for each in ids]
    batches = distribute_rows(sft_rows(examples), ranks=1, tokens_per_micro_batch=256, packed=packed)[0]
    losses = []
    for _ in range(2):
        losses.append(step.sft_backward(policy, batches, CPU.device).sums["loss"])
        update(policy, optimizer, lr=1e-3, grad_clip=1.0)
    return losses[1] - losses[0]


def _fault(fault: str, folder: Path) -> dict[str, Any]:
    """Return whether the self-check refuses a seeded fault."""
    family, seed = FAULTS[fault]
    restore: list[tuple[Any, str, Any]] = []

    def patch(module: Any, name: str, value: Any) -> None:
        restore.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    seed(patch)
    try:
        self_check.check_family(folder, packed=True)
        refusal = None
    except UnsupportedModel as error:
        refusal = str(error)
    finally:
        for module, name, value in reversed(restore):
            setattr(module, name, value)
    return {"fault": fault, "family": family, "refused": refusal is not None, "message": refusal}


@contextmanager
def _one_rank() -> Iterator[None]:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def table(result: dict[str, Any]) -> str:
    """Return the table of docs/models.md."""
    lines = [
        "| Family | `model_type` | Padded | Packed | Engine | LoRA | `validate` |",
        "|---|---|---|---|---|---|---|",
    ]
    engines = {row["family"]: row for row in result["engines"]["families"]}
    for row in sorted(result["families"], key=lambda row: row["family"].lower()):
        packed = "refused: set `packing: false`" if "packed_refused" in row else _bound(row["packed"])
        check = "by `config.json`" if row["model_type"] in PROVEN else "by a small model"
        measured = engines[row["family"]]
        engine, padded, adapter = _engine(measured), _bound(row["padded"]), measured.get("adapter")
        lora = "no" if row["model_type"] not in ADAPTED else engine if adapter is None else _bound(adapter)
        lines.append(f"| {row['family']} | `{row['model_type']}` | {padded} | {packed} | {engine} | {lora} | {check} |")
    return "\n".join(lines)


def _engine(row: dict[str, Any]) -> str:
    if "error" in row:
        return "refused by vLLM"
    if "refused" in row:
        return "refused"
    largest = max(row["difference"], row["reloaded"])
    return _bound(largest) + (", within its window" if row["tokens"] < model_engines.TOKENS else "")


def write_page(result: dict[str, Any]) -> None:
    """Replace the table of docs/models.md."""
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.split(START)[0], text.split(END)[1]
    PAGE.write_text(f"{head}{START}\n\n{table(result)}\n\n{END}{tail}", encoding="utf-8")


def _bound(value: float) -> str:
    """Return the next of a few bounds, because the last digits depend on the processor."""
    bounds = ("1e-6", "1e-5", "2e-5", "5e-5", "1e-4")
    return next((bound for bound in bounds if value <= float(bound)), f"{value:.0e}")


def main() -> None:
    """Measure, and write the result and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="measure one part, and keep the figures of the other")
    only = parser.parse_args().only
    quick = bool(os.environ.get("QUICK"))
    names = QUICK if quick else list(FAMILIES)
    result = json.loads(RESULTS.read_text(encoding="utf-8"))
    source = {"commit": describe_commit(), "machine": describe_machine()}
    command = f"{'QUICK=1 ' if quick else ''}make bench-models"
    if only != "engines":
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        result = {
            "command": command,
            **source,
            "versions": versions,
            **measure(names),
            "engines": result.get("engines"),
        }
    if only != "trainer":
        import vllm

        versions = {"vllm": vllm.__version__, "transformers": transformers.__version__}
        result["engines"] = {
            "command": command,
            **source,
            "versions": versions,
            "families": model_engines.measure(names),
        }
    if not quick:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_page(result)
    print(table(result))
    missed = [row["fault"] for row in result["faults"] if not row["refused"]]
    print(f"seeded faults refused: {len(result['faults']) - len(missed)} of {len(result['faults'])} {missed or ''}")


if __name__ == "__main__":
    main()
