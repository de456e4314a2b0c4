"""Measures the peak memory of an update of each objective at a vocabulary of 152,000, on the CPU, as ratios to GRPO.

    python -m bench.objective_memory [--before CHECKOUT]

Each update is `bench/train_step.py` in a process of its own: one layer, float32. `--before` adds GRPO's update by
another checkout of this repository, with the packages of this one. `make bench-objectives` writes
bench/results/objective_memory.json: {objectives: {NAME: {peak_mib, to_grpo}}, ..}. Objectives with a reference or a
teacher hold a second copy of the model, `copy_mib`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.provenance import ROOT, describe_command, describe_machine
from bench.train_compare import run_step
from bench.train_step import random_batch, write_model
from rstar2_train.api.objectives import OBJECTIVES

RESULTS = ROOT / "bench" / "results" / "objective_memory.json"
VOCABULARY = 152_000
SIZES = {
    **{"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32},
}
SEQUENCES = 12
CUSTOM = """from rstar2_train.grpo_roc.tokens import Terms

def advantages(group, settings):
    return [reward - 0.5 for reward in group.rewards]

def loss(tokens, settings):
    return Terms(tokens.ratio.detach() * tokens.advantages * tokens.logprobs, tokens.weights("TokenMean"))
"""


def main() -> None:
    """Measure each objective once."""
    parser = argparse.ArgumentParser(prog="python -m bench.objective_memory", description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout of this repository")
    before = parser.parse_args().before
    batch = random_batch(SEQUENCES, VOCABULARY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = write_model(folder / "model", SIZES, vocabulary=VOCABULARY)
        (folder / "batch.json").write_text(json.dumps(batch), encoding="utf-8")
        run = partial(run_step, "ours", folder / "model", folder / "batch.json", updates=1)
        peaks = {case: run(settings=settings)["peak_mib"] for case, settings in _cases(folder).items()}
        if before is not None:
            peaks["before"] = run(checkout=before.resolve())["peak_mib"]
    result = {
        "objectives": {case: {"peak_mib": peak, "to_grpo": peak / peaks["GRPO"]} for case, peak in peaks.items()},
        "copy_mib": parameters * 4 / 2**20,
        "vocabulary": VOCABULARY,
        "tokens": sum(len(row["prompt"]) + len(row["completion"]) for row in batch),
        "run": describe_command("bench.objective_memory"),
        **describe_machine(),
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _cases(folder: Path) -> dict[str, dict[str, Any]]:
    """Return name -> objective and KL term of a manifest's `grpo`."""
    (folder / "objective.py").write_text(CUSTOM, encoding="utf-8")
    own: dict[str, dict[str, Any]] = {
        "Distillation": {"teacher": {"source": "model"}},
        "Custom": {"source": str(folder / "objective.py")},
    }
    cases: dict[str, dict[str, Any]] = {kind: {"objective": {"type": kind} | own.get(kind, {})} for kind in OBJECTIVES}
    return cases | {"GRPO with referenceKl": {"referenceKl": {}}}


if __name__ == "__main__":
    main()
