"""Measures LoRA next to the training of the whole model.

    python -m bench.lora [--only PART] [--seeds 0 1 2 3 4] [--state FOLDER]

`make bench-lora` writes bench/results/lora.json:

- `pass_at_1`: {full, r8, r32}: held-out pass@1 after the first GRPO stage of examples/tiny.yaml, one value per seed.
  All start from the same SFT model; the learning rate of an adapter is ten times that of the whole model.
- `engine_error`: mean |log p of the trainer − log p of the engine| in each update of a stage of rank 32 with
  `maxStaleness: 4`, over the tokens that the trainer's own version sampled; an update without such tokens is omitted.
- `importance_ratio`: mean ratio, as the correction limits it, of the trainer's probability of a token to the engine's,
  over all tokens of these updates. Older versions sampled most of them, so that it has the policy's progress too.
- `bytes_vs_file`, `bytes_vs_model`, `seconds`: an update of a real engine with an adapter of rank 8, on a model of more
  than 0.1 billion parameters: its bytes next to those of the adapter's file and of the model, and the median of its
  seconds: the adapter is written, loaded, verified and probed. `memory_vs_full`: peak memory of the trainer (float32 on
  the CPU) next to that of the whole model.

`QUICK=1 make bench-lora` writes the same keys under `quick`: one seed of examples/smoke.yaml, which shows that the
parts run, not how well they learn, and fewer updates. Complete runs stay in the state folder: an interrupted benchmark
resumes. With `--only` the other results stay as they are; `run` has the last command for each part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from bench import memory
from bench.learning import run_from_sft, runs_of, save_manifest, stage_report
from bench.pipeline_weights import ENGINE_JOB, start_engine, train, wait_for, write_model
from bench.provenance import ROOT, Load, describe_command, describe_commit, describe_machine
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.lora import LoRASpec
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.orchestrator.weight_transports import AdapterTransport
from rstar2_train.tracking.journal import read_entries
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import OptimizerConfig, TrainConfig
from rstar2_train.weights.adapter_folder import TENSORS

RESULTS = ROOT / "bench" / "results" / "lora.json"
VARIANTS: dict[str, int | None] = {"full": None, "r8": 8, "r32": 32}
"""Rank of each variant; None: the whole model."""
PARTS = ("update", "memory", "learning", "gaps")
STALENESS = 4
RATIO_UPDATES = {True: 12, False: 100}
"""Updates with staleness, in the short and in the long form."""
LORA = LoRASpec(rank=8, alpha=32)
SHAPE = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 6, "vocab_size": 16384}
"""128 million parameters."""
MEMORY_CASE = {
    **{"layers": 8, "hidden": 1024, "intermediate": 3072, "vocabulary": 16384, "tied": True, "row": 256},
    **{"ranks": 1, "tokens": 256, "chunk": 256, "checkpointed_layers": 8},
}
"""117 million parameters."""


def write_stage(name: str, rank: int | None, seed: int, folder: Path, *, quick: bool, staleness: int = 0) -> Path:
    """Write the manifest of SFT and one GRPO stage, and return its path."""
    data = read_manifest(ROOT / "examples" / ("smoke.yaml" if quick else "tiny.yaml"))
    spec = data["spec"]
    sft, rl = [stage for stage in spec["stages"] if stage["type"] in ("SFT", "GRPO")][:2]
    rl = rl | {"name": "rl"}
    spec["seed"] = seed
    if quick:
        rl["grpo"] |= {"steps": 6}
    if rank is not None:
        rl["trainer"] = {"lora": {"rank": rank, "alpha": 32}}
        spec["grpo"]["learningRate"] *= 10
    if staleness:
        rl["grpo"] |= {"maxStaleness": staleness, "steps": RATIO_UPDATES[quick]}
        del spec["validation"]
    elif not quick:
        spec["validation"] |= {"samples": 4, "maxProblems": None}
    spec["stages"] = [sft, rl]
    return save_manifest(data, f"{'quick' if quick else 'lora'}-{name}-{seed}", folder)


def pass_at_1(variant: str, seed: int, state: Path, *, quick: bool) -> float:
    """Return the held-out pass@1 of a variant after its GRPO stage."""
    job = run_from_sft(write_stage(variant, VARIANTS[variant], seed, state, quick=quick), state)
    return float(stage_report(job, "rl")["pass_at_1"])


def learning(seeds: list[int], state: Path, *, quick: bool) -> dict[str, Any]:
    """Return pass@1 of each variant and seed."""
    scores = {variant: [pass_at_1(variant, seed, state, quick=quick) for seed in seeds] for variant in VARIANTS}
    full = scores["full"]
    error = stdev(full) / len(full) ** 0.5 if len(full) > 1 else None
    return {"seeds": seeds, "pass_at_1": scores, "standard_error_of_full": error}


def gaps(state: Path, *, quick: bool) -> dict[str, list[float]]:
    """Return `engine_error` and `importance_ratio` of the updates of a stage with staleness."""
    path = write_stage("ratio", 32, 0, state, quick=quick, staleness=STALENESS)
    job = run_from_sft(path, state)
    updates: dict[int, dict[str, float]] = {}
    for event, _ in read_entries(journal_file(job.root)):
        if event is not None and event["kind"] == "metrics" and "trainer/correction_mean" in event["values"]:
            updates[event["step"]] = event["values"]

    def of(metric: str) -> list[float]:
        return [round(values[metric], 6) for _, values in sorted(updates.items()) if metric in values]

    return {"engine_error": of("trainer/engine_error_mean"), "importance_ratio": of("trainer/correction_mean")}


def measure_updates(*, updates: int) -> dict[str, Any]:
    """Train an adapter on a random model, and load each of its versions into a real engine."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-bench-")))
        model = folder / "model"
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as writer:  # its memory ends with it
            parameters = writer.submit(write_model, model, SHAPE).result()
        job = ENGINE_JOB.model_dump(mode="json", by_alias=True)
        job["spec"]["trainer"]["lora"] = LORA.model_dump(mode="json", by_alias=True)
        job["spec"]["rollout"]["weightTransport"] = "Folder"
        token = secrets.token_urlsafe(24)
        url = start_engine(stack, model, folder, token, AgenticRLJob.model_validate(job))
        config = TrainConfig(tokens_per_micro_batch=512, logprob_chunk_tokens=128, threads=1, lora=LORA)
        group = stack.enter_context(TrainerGroup(ranks=1, config=config))
        group.load(model, optimizer=OptimizerConfig())
        wait_for(url)
        rows = asyncio.run(_load_versions(group, folder, url, token, updates=updates))
    file = fmean(row["file_bytes"] for row in rows)
    size = fmean(row["bytes"] for row in rows)
    stored = 2 * parameters
    return {
        "bytes_vs_file": round(size / file, 4),
        "bytes_vs_model": round(size / stored, 4),
        "seconds": round(median(row["seconds"] for row in rows), 3),
        "update": {"parameters": parameters, "rank": LORA.rank, "bytes": round(size), "updates": len(rows)},
    }


async def _load_versions(
    group: TrainerGroup, folder: Path, url: str, token: str, *, updates: int
) -> list[dict[str, float]]:
    """Return the bytes and seconds of each update after the first one, which loads the base too."""
    base = FolderUpdate.make(group.model_dir, "rl-step-000000", base_name="base")
    (folder / "weights").mkdir()
    transport = AdapterTransport(folder / "weights", base=base)
    rows = []
    async with EnginePool([url], token=token, connect=partial(EngineClient, has_adapters=True)) as pool:
        for step in range(updates + 1):
            await asyncio.to_thread(train, group, step, lr=1e-4)
            started = time.perf_counter()
            update = await transport.publish(group, f"rl-step-{step + 1:06d}", overlapped=True)
            if await pool.push(update) != [url]:  # it ends with the probe, which the ranks score meanwhile
                raise RuntimeError(f"the engine does not serve {update.version}")
            seconds = time.perf_counter() - started
            rows.append({"seconds": seconds, **_sizes(Path(update.order.folder))})
            await asyncio.to_thread(transport.prune, update)
    return rows[1:]


def _sizes(version: Path) -> dict[str, float]:
    """Return the bytes of all files of a version, and of the tensors."""
    return {
        "bytes": sum(file.stat().st_size for file in version.iterdir()),
        "file_bytes": (version / TENSORS).stat().st_size,
    }


def memory_vs_full() -> dict[str, Any]:
    """Return the peak memory of a training step with an adapter, next to that of the whole model."""
    peaks = {
        name: memory.measure(name, memory.case(**MEMORY_CASE, lora=lora))  # type: ignore[arg-type]
        for name, lora in (("full", None), ("r8", LORA))
    }
    sizes = {name: row["measured_bytes"] for name, row in peaks.items()}
    return {"memory_vs_full": round(sizes["r8"] / sizes["full"], 3), "peak_bytes": sizes}


def main() -> None:
    """Run the missing runs, and write and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="measure only this (repeatable)")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds (default: 0 1 2 3 4; 0 in the short form)")
    parser.add_argument("--state", type=Path, default=ROOT / ".rstar2" / "bench", help="folder of the jobs")
    options = parser.parse_args()
    quick, state = bool(os.environ.get("QUICK")), options.state.resolve()
    seeds = options.seeds or ([0] if quick else list(range(5)))
    everything: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results = everything.setdefault("quick", {}) if quick else everything
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "update": partial(measure_updates, updates=5 if quick else 20),
        "memory": memory_vs_full,
        "learning": partial(learning, seeds, state, quick=quick),
        "gaps": partial(gaps, state, quick=quick),
    }
    kind = "quick" if quick else "lora"
    runs = {"learning": [state / f"{kind}-{name}-{seed}.yaml" for name in VARIANTS for seed in seeds]}
    runs["gaps"] = [state / f"{kind}-ratio-0.yaml"]
    for part in options.only or PARTS:
        started, load = time.monotonic(), Load()
        results |= measures[part]()
        results.setdefault("run", {})[part] = {
            "command": describe_command("bench.lora"),
            "minutes": round((time.monotonic() - started) / 60, 1),
            "commit": describe_commit(),
            "runs": runs_of(runs.get(part, [])),
            "machine": describe_machine(),
            "loadAverage": load.describe(),
        }
    RESULTS.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
