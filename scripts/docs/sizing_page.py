"""docs/sizing.md: the GPUs that models and budgets need, as `rstar2 plan` computes it.

`python -m scripts.docs.sizing_page` writes its table.
"""

from __future__ import annotations

from typing import Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.validation import load
from rstar2_train.capacity.fit import misfits
from rstar2_train.capacity.hardware_profile import load_profile
from rstar2_train.capacity.memory import snapshot_bytes
from rstar2_train.capacity.model_shape import read_shape
from scripts.docs.repository import ROOT

PAGE = ROOT / "docs" / "sizing.md"
MODELS = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B")
BUDGETS = (8192, 12288, 30720)
HARDWARE = {"h100": "GPUs of 80 GB", "mi300x": "GPUs of 192 GB"}
"""Hardware profile -> heading of its column."""
RANKS, TENSOR = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)
START, END = "<!-- table: start -->\n\n", "\n<!-- table: end -->"


def job(model: str, budget: int, *, ranks: int, tensor: int) -> AgenticRLJob:
    """Return a job of one GRPO stage: 64 problems with 16 rollouts per step. Pure."""
    nodes = max(1, ranks // 8)
    spec: dict[str, Any] = {
        "model": {"source": model, "assumeInstructionTuned": True},
        "accelerator": {"vendor": "NVIDIA", "resource": "nvidia.com/gpu"},
        "trainer": {"replicas": nodes, "gpusPerReplica": ranks // nodes, "tokensPerMicroBatch": 16384},
        "rollout": {"replicas": 1, "tensorParallel": tensor, "weightTransport": "Auto"},
        "grpo": {"promptsPerStep": 64, "rolloutsPerPrompt": 16, "keepPerPrompt": 8, "maxTurns": 10},
        "stages": [
            {"name": "rl", "type": "GRPO", "grpo": {"data": "rows", "steps": 100, "maxResponseTokens": budget}},
        ],
    }
    return load(
        {"apiVersion": "rstar2.dev/v1alpha1", "kind": "AgenticRLJob", "metadata": {"name": "size"}, "spec": spec}
    )


def smallest(model: str, budget: int, hardware: str) -> tuple[int, int] | None:
    """Return the fewest trainer ranks, and then the smallest `tensorParallel`, that fit; None if none does."""
    shape, profile = read_shape(model), load_profile(hardware)
    sizes = ((ranks, tensor) for ranks in RANKS for tensor in TENSOR)
    return next(
        (
            (ranks, tensor)
            for ranks, tensor in sizes
            if not misfits(job(model, budget, ranks=ranks, tensor=tensor), shape, profile)
        ),
        None,
    )


def table() -> str:
    """Return the table of the page."""
    heads = ["Model, budget", *HARDWARE.values(), "Checkpoint", "Weights of an engine"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for model in MODELS:
        shape = read_shape(model)
        for budget in BUDGETS:
            sizes = [smallest(model, budget, hardware) for hardware in HARDWARE]
            cells = [f"{sum(size)}: {size[0]} + {size[1]}" if size else f"above {RANKS[-1]} ranks" for size in sizes]
            cells += [f"{snapshot_bytes(shape, ranks=1) / 1e9:,.0f} GB", f"{2 * shape.parameters / 1e9:,.1f} GB"]
            lines.append("| " + " | ".join([f"{model}, {budget:,}", *cells]) + " |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the present table."""
    return page.partition(START)[0] + START + table() + END + page.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), encoding="utf-8")
