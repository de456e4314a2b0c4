"""Measures the learning of a second domain from its reward alone: tiny text-to-SQL, on the CPU.

Key `sql` of `bench.environments`: per seed, held-out pass@1 after SFT and after GRPO-RoC with the standard error of the
difference, and the tool errors of GRPO-RoC and of plain GRPO at the end, from the same SFT model.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.learning import ROOT, error_curve, run
from bench.sql_task import Sizes, write_task
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState

MODES = {"roc": "Paper", "plain": "Uniform"}
"""Name in the results -> `grpo.resample.mode`."""


@dataclass(frozen=True)
class Size:
    """The amount of work of one form of the benchmark."""

    seeds: int
    sft_steps: int
    steps: int
    prompts: int
    held_out: int
    samples: int


FULL = Size(seeds=3, sft_steps=700, steps=12, prompts=10, held_out=240, samples=2)
SHORT = Size(seeds=1, sft_steps=700, steps=12, prompts=10, held_out=100, samples=2)


def measure(*, quick: bool) -> dict[str, Any]:
    """Return the value of the key `sql`. Finished runs are not repeated."""
    size = SHORT if quick else FULL
    folder = ROOT / ".rstar2" / ("bench-environments-quick" if quick else "bench-environments")
    rows = [run_seed(folder, seed, size) for seed in range(size.seeds)]
    return {name: [row[name] for row in rows] for name in rows[0]} | {"size": asdict(size)}


def run_seed(folder: Path, seed: int, size: Size) -> dict[str, Any]:
    """Return the figures of one seed. Both modes start from the same SFT model."""
    jobs = {name: run_mode(folder, seed, name, size) for name in MODES}
    reports = {name: stage_reports(job) for name, job in jobs.items()}
    sft, rl = reports["roc"]["sft"], reports["roc"]["rl"]
    curves = {name: error_curve(job) for name, job in jobs.items()}
    return {
        "before": sft["pass_at_1"],
        "after": rl["pass_at_1"],
        "se": math.hypot(sft["pass_at_1_se"], rl["pass_at_1_se"]),
        "after_plain": reports["plain"]["rl"]["pass_at_1"],
        "tool_errors_roc": last_errors(curves["roc"]),
        "tool_errors_plain": last_errors(curves["plain"]),
        "tool_errors_held_out": {name: report["rl"]["tool_error_ratio_correct"] for name, report in reports.items()},
        "curves": curves,
    }


def run_mode(folder: Path, seed: int, name: str, size: Size) -> JobState:
    """Run one seed in one mode, unless it has completed. The second mode takes the SFT stage of the first."""
    task = folder / f"task-{seed}"
    if not (task / "base" / "model.safetensors").exists():
        shutil.rmtree(task, ignore_errors=True)
        write_task(task, seed=seed, sizes=Sizes(held_out=size.held_out))
    job, first = folder / f"sql-{name}-{seed}", folder / f"sql-{next(iter(MODES))}-{seed}"
    if job != first and not job.exists():
        shutil.copytree(first / "stages" / "sft", job / "stages" / "sft")
    return run(write_manifest(task, job.name, seed=seed, mode=MODES[name], size=size), folder)


def write_manifest(task: Path, name: str, *, seed: int, mode: str, size: Size) -> Path:
    """Write the manifest of a run next to the data of its seed, and return its path."""
    data = read_manifest(task / "job.yaml")
    data["metadata"]["name"] = name
    spec = data["spec"]
    spec["seed"] = seed
    spec["validation"]["samples"] = size.samples
    spec["grpo"] |= {"resample": {"mode": mode}, "promptsPerStep": size.prompts}
    sft, rl = spec["stages"]
    sft["sft"]["epochs"] = size.sft_steps * sft["sft"]["batchSize"] / Sizes().demonstrations
    rl["grpo"]["steps"] = size.steps
    path = task / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def stage_reports(job: JobState) -> dict[str, dict[str, Any]]:
    """Return the figures of each stage of a completed job, by the name of the stage."""
    report = json.loads(job.report_file.read_text(encoding="utf-8"))
    return {stage["name"]: stage for stage in report["stages"]}


def last_errors(curve: list[dict[str, float]]) -> float:
    """Return the mean share of failed calls in correct rollouts over the last quarter of the steps."""
    values = [point["tool_error_ratio_correct"] for point in curve]
    return statistics.fmean(values[-max(1, len(values) // 4) :])
