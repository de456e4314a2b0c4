"""docs/sizing.md: the GPUs that models and budgets need, as `rstar2 plan` computes it.

`python -m scripts.docs.sizing_page` writes its table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from typing import Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.validation import load
from rstar2_train.capacity.fit import misfits
from rstar2_train.capacity.hardware_profile import load_profile
from rstar2_train.capacity.memory import snapshot_bytes
from rstar2_train.capacity.model_shape import read_shape
from rstar2_train.plan.rollout_time import StageInputs
from rstar2_train.plan.stage_rows import stage_rows
from scripts.docs.repository import ROOT

PAGE = ROOT / "docs" / "sizing.md"
MODELS = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B")
BUDGETS = (8192, 12288, 30720)
HARDWARE = {"h100": "H100", "mi300x": "MI300X"}
"""Hardware profile -> name of its GPUs, in the heads of its columns."""
RANKS, TENSOR = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)
ENGINES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
"""Numbers of engines that are tried; with more than the problems of a step some have no work."""
STEP_SECONDS = 900.0
"""The step that the columns `15 min` ask for."""
START, END = "<!-- table: start -->\n\n", "\n<!-- table: end -->"


def job(model: str, budget: int, *, ranks: int, tensor: int, engines: int = 1) -> AgenticRLJob:
    """Return a job of one GRPO stage: 64 problems with 16 rollouts per step, and enough executors. Pure."""
    nodes = max(1, ranks // 8)
    spec: dict[str, Any] = {
        "model": {"source": model, "assumeInstructionTuned": True},
        "accelerator": {"vendor": "NVIDIA", "resource": "nvidia.com/gpu"},
        "trainer": {"replicas": nodes, "gpusPerReplica": ranks // nodes, "tokensPerMicroBatch": 16384},
        "rollout": {"replicas": engines, "tensorParallel": tensor, "weightTransport": "Auto"},
        "executor": {"replicas": 256},
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


@cache
def step_seconds(model: str, budget: int, hardware: str, *, ranks: int, tensor: int, engines: int) -> float:
    """Return the seconds of a step, as `rstar2 plan` has them in the row `step, synchronous`."""
    sized = job(model, budget, ranks=ranks, tensor=tensor, engines=engines)
    rows = stage_rows(sized, sized.spec.stages[0], read_shape(model), load_profile(hardware), StageInputs())
    return next(float(row.value) for row in rows if row.key == "stepSeconds")


def fast(model: str, budget: int, hardware: str, *, ranks: int, tensor: int) -> tuple[int, int] | None:
    """Return the ranks and engines of the fewest GPUs with a step of 15 minutes; None if no number reaches it.

    `ranks`, `tensor`: those of `smallest`. More ranks are tried too, because an update may take most of the time; a
    larger `tensor` is not.
    """
    best: tuple[int, int] | None = None
    for more in (count for count in RANKS if count >= ranks):

        def is_fast(engines: int, count: int = more) -> bool:
            return step_seconds(model, budget, hardware, ranks=count, tensor=tensor, engines=engines) <= STEP_SECONDS

        at = bisect_left(ENGINES, True, key=is_fast)
        if at < len(ENGINES) and (best is None or more + ENGINES[at] * tensor < best[0] + best[1] * tensor):
            best = more, ENGINES[at]
    return best


def cells_of(model: str, budget: int, hardware: str) -> tuple[str, str]:
    """Return the cells of a device: the fewest GPUs with the time of their step, and those of a 15-minute step."""
    size = smallest(model, budget, hardware)
    if size is None:
        return f"above {RANKS[-1]} ranks", "-"
    ranks, tensor = size
    minutes = step_seconds(model, budget, hardware, ranks=ranks, tensor=tensor, engines=1) / 60
    quick = fast(model, budget, hardware, ranks=ranks, tensor=tensor)
    return f"{size_text(ranks, tensor, 1)}, {minutes:,.0f} min", size_text(quick[0], tensor, quick[1]) if quick else "-"


def size_text(ranks: int, tensor: int, engines: int) -> str:
    """Return a number of GPUs with its parts, such as `22: 16 + 3 x 2`. Pure."""
    return f"{ranks + engines * tensor}: {ranks} + {engines}" + (f" x {tensor}" if tensor > 1 else "")


def row_of(model: str, budget: int) -> str:
    """Return the line of a model and a budget."""
    shape = read_shape(model)
    cells = [cell for hardware in HARDWARE for cell in cells_of(model, budget, hardware)]
    cells += [f"{snapshot_bytes(shape, ranks=1) / 1e9:,.0f} GB", f"{2 * shape.parameters / 1e9:,.1f} GB"]
    return "| " + " | ".join([f"{model}, {budget:,}", *cells]) + " |\n"


def heading() -> str:
    """Return the first two lines of the table."""
    devices = [f"{device}: {size}" for device in HARDWARE.values() for size in ("fewest GPUs", "15-minute step")]
    heads = ["Model, budget", *devices, "Checkpoint", "Weights of an engine"]
    return "| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|\n"


def table(models: Sequence[str] = MODELS) -> str:
    """Return the table of the page."""
    return heading() + "".join(row_of(model, budget) for model in models for budget in BUDGETS)


def with_table(page: str) -> str:
    """Return the page with the present table."""
    return page.partition(START)[0] + START + table() + END + page.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), encoding="utf-8")
