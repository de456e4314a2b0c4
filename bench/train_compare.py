"""`make bench-train`: the product's GRPO update against TRL's and a naive one, on the CPU: same batch, same model.

Each step runs in a process of its own (`bench/train_step.py`). TRL comes from PyPI into a folder outside this
repository, next to the packages of this one. `make bench-train` writes bench/results/train.json; `QUICK=1 make
bench-train` is the short form with the same keys, and prints instead of writing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.provenance import ROOT, describe_commit, describe_machine
from rstar2_train.trainer.bins import fill, pack_bins

RESULTS = ROOT / "bench" / "results" / "train.json"
TRL = ("trl==1.16.0", "accelerate==1.15.0", "datasets==5.2.0", "dill", "multiprocess", "xxhash", "pandas")
"""Packages of TRL that this project does not have."""
PACKAGES = Path.home() / ".cache" / "rstar2" / "bench-trl-1.16.0"
VOCABULARY = 32_768
SIZES = {
    **{"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1536},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64},
}
"""A Qwen3 of 42 million parameters."""
PAPER_BUDGET, PAPER_RESPONSE, PAPER_RANKS = 20_480, 12_288, 24
SEQUENCES = 16
"""Rollouts of the long form; TRL's step holds the logits of all of them several times, 9 GiB."""
STEPS = ("ours", "naive", "trl")


def main() -> None:
    """Measure the three steps in turn, twice each, and keep the faster run of each."""
    quick = bool(os.environ.get("QUICK"))
    from bench.train_step import BUDGET, random_batch, write_model

    batch = random_batch(8 if quick else SEQUENCES, VOCABULARY)
    tokens = sum(len(row["prompt"]) + len(row["completion"]) for row in batch)
    with tempfile.TemporaryDirectory() as folder:
        model, file = Path(folder) / "model", Path(folder) / "batch.json"
        parameters = write_model(model, SIZES, vocabulary=VOCABULARY)
        file.write_text(json.dumps(batch), encoding="utf-8")
        runs: dict[str, list[dict[str, Any]]] = {step: [] for step in STEPS}
        for _ in range(1 if quick else 2):
            for step in STEPS:
                runs[step].append(run_step(step, model, file, updates=1 if quick else 3))
    best = {step: min(results, key=lambda result: result["seconds"]) for step, results in runs.items()}
    figures = {
        step: {"tokens_per_s": tokens / result["seconds"], "peak_mib": result["peak_mib"], "loss": result["loss"]}
        for step, result in best.items()
    }
    result = figures | {
        "speed_vs_trl": figures["ours"]["tokens_per_s"] / figures["trl"]["tokens_per_s"],
        "speed_vs_naive": figures["ours"]["tokens_per_s"] / figures["naive"]["tokens_per_s"],
        "memory_vs_naive": figures["ours"]["peak_mib"] / figures["naive"]["peak_mib"],
        "fill": _paper_fill(),
        "sequences": len(batch),
        "tokens": tokens,
        "micro_batch_tokens": BUDGET,
        "parameters": parameters,
        "command": "QUICK=1 python -m bench.train_compare" if quick else "python -m bench.train_compare",
        "commit": describe_commit(),
        **describe_machine(),
        "load_average": round(os.getloadavg()[0], 1),
    }
    text = json.dumps(result, indent=1) + "\n"
    if not quick:
        RESULTS.write_text(text, encoding="utf-8")
    print(text)


def run_step(
    step: str, model: Path, batch: Path, *, updates: int, settings: dict[str, Any] | None = None, checkout: Path = ROOT
) -> dict[str, Any]:
    """Run a step in a process of its own, by a checkout of this repository; return its figures. Raises RuntimeError.

    `settings`: those of `bench.train_step --settings`.
    """
    argv = [sys.executable, "-m", "bench.train_step", step]
    argv += ["--model", str(model), "--batch", str(batch), "--updates", str(updates)]
    argv += ["--settings", json.dumps(settings)] if settings else []
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "HF_HUB_OFFLINE": "1"}
    if step == "trl":
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(_trl_packages())])
    done = subprocess.run(argv, cwd=checkout, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} failed with {done.returncode}: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"{step} {settings or ''}: {figures}", file=sys.stderr, flush=True)
    return figures


def _trl_packages() -> Path:
    """Return a folder with TRL's own packages; the first call downloads them."""
    if not PACKAGES.exists():
        uv = subprocess.run(
            [sys.executable, "-I", ROOT / "scripts" / "setup.py", "--uv"], capture_output=True, text=True, check=True
        )
        aside = PACKAGES.with_name(f"{PACKAGES.name}.{os.getpid()}")
        install = [uv.stdout.strip(), "pip", "install", "--quiet", "--no-deps", "--target", str(aside), *TRL]
        subprocess.run([*install, "--python", sys.executable], check=True)
        aside.rename(PACKAGES)
    return PACKAGES


def _paper_fill() -> float:
    """Return the fill of micro-batches with rollouts of the paper's lengths: 12K tokens, 10 % and more cut off."""
    import math
    import random

    draw = random.Random(0)
    lengths = [
        200 + min(PAPER_RESPONSE, round(draw.lognormvariate(math.log(PAPER_RESPONSE / 2), 0.5))) for _ in range(5734)
    ]
    return fill(lengths, len(pack_bins(lengths, capacity=PAPER_BUDGET, ranks=PAPER_RANKS)), capacity=PAPER_BUDGET)


if __name__ == "__main__":
    main()
