"""Measures the learning of the tiny job: three seeds of the complete curriculum, and GRPO-RoC compared with plain GRPO.

`make bench-learning` writes `bench/results/learning.json` and the plots in docs/pictures/. Each run is `rstar2 run`
with a manifest of examples/, another seed, and the complete held-out set (480 problems, 4 samples each). Completed runs
stay under `.rstar2/bench/`, so that an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from bench.provenance import ROOT, describe_commit
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store

RESULTS = ROOT / "bench" / "results" / "learning.json"
SEEDS = (0, 1, 2)
SAMPLES = 4
LAST_STEPS = 8
"""Steps at the end of a stage whose rollouts give its tool errors."""


def write_manifest(example: str, *, name: str, seed: int, folder: Path, resample: str | None = None) -> Path:
    """Write the manifest of one run into `folder`, from an example, and return its path."""
    data = read_manifest(ROOT / "examples" / example)
    spec = data["spec"]
    spec["seed"] = seed
    if resample is not None:  # the comparison uses the curve of the training steps, not the held-out set
        spec["grpo"]["resample"] = {"mode": resample.capitalize()}
    else:
        spec["validation"] |= {"samples": SAMPLES, "maxProblems": None}
        for stage in spec["stages"]:
            if stage["type"] == "Evaluate":
                stage["evaluate"]["samples"] = SAMPLES
    return save_manifest(data, name, folder)


def save_manifest(data: dict[str, Any], name: str, folder: Path) -> Path:
    """Write the manifest of a job with this name into `folder`; return its path."""
    data["metadata"]["name"] = name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def run(path: Path, state: Path) -> JobState:
    """Run a manifest until its job completes; return immediately for a completed job. Raises CalledProcessError.

    Commit and load average at the start and the end of a run are recorded next to the manifest: see `runs_of`.
    """
    job = JobState(state / path.stem)
    if is_complete := job.report_file.exists():
        print(f"{path.stem}: a complete run is reused", file=sys.stderr)
    else:
        _record(path)
    subprocess.run([sys.executable, "-m", "rstar2_train.cli", "run", str(path), "--state", str(state)], check=True)
    if not is_complete:
        _record(path)
    return job


def run_from_sft(path: Path, state: Path) -> JobState:
    """Run a manifest KIND-NAME-SEED from the SFT model of another job of its kind and seed, if there is one."""
    kind, seed = path.stem.partition("-")[0], path.stem.rpartition("-")[2]
    trained = [folder for folder in state.glob(f"{kind}-*-{seed}/stages/sft") if (folder / "outcome.json").exists()]
    if trained and not (state / path.stem).exists():
        shutil.copytree(trained[0], state / path.stem / "stages" / "sft")
    return run(path, state)


def runs_of(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the commits and the load averages, lowest and highest, of the runs of some manifests.

    Complete runs are reused, so that they can be older than the results.
    """
    files = [file for path in paths if (file := _runs_file(path)).exists()]
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    loads = [row["load"] for row in rows]
    return {"commits": sorted({row["commit"] for row in rows}), "load": [min(loads), max(loads)] if loads else []}


def _record(path: Path) -> None:
    row = {"commit": describe_commit(), "load": round(os.getloadavg()[1], 1)}
    with _runs_file(path).open("a", encoding="utf-8") as file:
        print(json.dumps(row), file=file)


def _runs_file(path: Path) -> Path:
    return path.with_suffix(".runs.jsonl")


def run_curriculum(seed: int, state: Path) -> dict[str, Any]:
    """Run one seed of examples/tiny.yaml and return its result."""
    job = run(write_manifest("tiny.yaml", name=f"tiny-{seed}", seed=seed, folder=state), state)
    return _result(job, "tiny", seed=seed, mode="paper")


def run_comparison(seed: int, mode: str, state: Path) -> dict[str, Any]:
    """Run one seed of examples/tiny-roc.yaml in one resampling mode and return its result.

    Both modes start from the same SFT model: that of examples/tiny.yaml, which has the same SFT stage, or the model
    that the first mode trained.
    """
    name = f"roc-{mode}-{seed}"
    path = write_manifest("tiny-roc.yaml", name=name, seed=seed, folder=state, resample=mode)
    trained = (state / earlier / "stages" / "sft" for earlier in (f"tiny-{seed}", f"roc-paper-{seed}"))
    sft = next((folder for folder in trained if (folder / "outcome.json").exists()), None)
    if sft is not None and not (state / name).exists():
        shutil.copytree(sft, state / name / "stages" / "sft")
    job = run(path, state)
    return _result(job, "tiny-roc", seed=seed, mode=mode) | {"curve": error_curve(job)}


def last_tool_errors(curve: list[dict[str, float]]) -> float | None:
    """Return the mean tool-error ratio of correct rollouts, over the last LAST_STEPS steps that have any."""
    errors = [point["tool_error_ratio_correct"] for point in curve[-LAST_STEPS:]]
    measured = [value for value in errors if value == value]
    return sum(measured) / len(measured) if measured else None


def step_seconds(folder: Path) -> float:
    """Return the median seconds between the ends of the rollouts of two steps, of a folder of trajectories.

    The median, because a run may have been suspended between two steps.
    """
    times = [file.stat().st_mtime for file in sorted(folder.glob("step-*.parquet"))]
    return statistics.median([after - before for before, after in pairwise(times)] or [0.0])


def stage_report(job: JobState, stage: str) -> dict[str, Any]:
    """Return the figures of a stage in the report of a job."""
    stages: list[dict[str, Any]] = json.loads(job.report_file.read_text(encoding="utf-8"))["stages"]
    return next(each for each in stages if each["name"] == stage)


def error_curve(job: JobState) -> list[dict[str, float]]:
    """Return the tool-error ratio of correct rollouts, and the reward, at each GRPO step, from the trajectory files."""
    curve: list[dict[str, float]] = []
    for stage in job.job().spec.stages:
        if stage.type != "GRPO":
            continue
        for file in sorted(job.stage(stage.name).trajectories.glob("step-*.parquet")):
            rows = [row for row in trajectory_store.read(file) if not row.failed]
            correct = [row for row in rows if row.reward > 0]
            calls = sum(len(row.calls) for row in correct)
            errors = sum(row.call_errors for row in correct)
            curve.append(
                {
                    "step": len(curve) + 1,
                    "tool_error_ratio_correct": errors / calls if calls else math.nan,
                    "reward": statistics.fmean(row.reward for row in rows),
                }
            )
    return curve


def _result(job: JobState, example: str, *, seed: int, mode: str) -> dict[str, Any]:
    report = json.loads(job.report_file.read_text(encoding="utf-8"))
    return {"manifest": example, "seed": seed, "mode": mode, "seconds": report["seconds"], "stages": report["stages"]}


def plot(results: dict[str, Any], docs: Path) -> None:
    """Draw the plots of docs/pictures/: slices over the stages, and the error curves of both modes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for mode, colour, label in (("paper", "tab:blue", "GRPO-RoC"), ("uniform", "tab:orange", "GRPO (uniform)")):
        curves = [run["curve"] for run in results["runs"] if run["manifest"] == "tiny-roc" and run["mode"] == mode]
        if not curves:
            continue
        values = [[point["tool_error_ratio_correct"] for point in curve] for curve in curves]
        for curve in values:
            axes.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.25)
        mean = [statistics.fmean(column) for column in zip(*values, strict=False)]
        axes.plot(
            range(1, len(mean) + 1), mean, color=colour, linewidth=2, label=f"{label}, mean of {len(curves)} seeds"
        )
    axes.set(xlabel="step", ylabel="tool errors in correct trajectories", ylim=(0, None))
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(docs / "roc-vs-grpo.svg")
    pyplot.close(figure)

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, colour in (("L1", "tab:green"), ("L2", "tab:blue"), ("L3", "tab:red")):
        tiny = [run for run in results["runs"] if run["manifest"] == "tiny"]
        rows = [[s for s in run["stages"] if s["type"] in ("SFT", "GRPO")] for run in tiny]
        if not rows:
            continue
        for row in rows:
            axes.plot([s["name"] for s in row], [s["slices"][name]["pass_at_1"] for s in row], color=colour, alpha=0.3)
        mean = [statistics.fmean(s["slices"][name]["pass_at_1"] for s in column) for column in zip(*rows, strict=True)]
        axes.plot([s["name"] for s in rows[0]], mean, color=colour, linewidth=2, marker="o", label=name)
    axes.set(ylabel="held-out pass@1 (T = 1)", ylim=(0, 1))
    axes.legend(frameon=False, title="operations")
    figure.tight_layout()
    figure.savefig(docs / "tiny-stages.svg")
    pyplot.close(figure)


def main() -> None:
    """Run the missing seeds, then write results and plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--state", type=Path, default=ROOT / ".rstar2" / "bench", help="folder of the jobs (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="seeds (default: %(default)s)")
    parser.add_argument("--only", choices=["runs", "comparison"], help="part to run (default: both)")
    parser.add_argument("--again", action="store_true", help="repeat runs that are in the results")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"runs": []}
    state = arguments.state.resolve()
    runs = [("tiny", seed, "paper") for seed in arguments.seeds if arguments.only != "comparison"]
    runs += [("tiny-roc", seed, mode) for seed in arguments.seeds for mode in ("paper", "uniform")
               if arguments.only != "runs"]  # fmt: skip
    for example, seed, mode in runs:
        if arguments.again or not _has_result(results, example, seed, mode):
            _save(results, run_curriculum(seed, state) if example == "tiny" else run_comparison(seed, mode, state))
    plot(results, ROOT / "docs" / "pictures")


def _has_result(results: dict[str, Any], example: str, seed: int, mode: str) -> bool:
    return any((run["manifest"], run["seed"], run["mode"]) == (example, seed, mode) for run in results["runs"])


def _save(results: dict[str, Any], row: dict[str, Any]) -> None:
    """Add a run to the results, or replace an earlier one with the same seed and mode, and write them."""
    key = ("manifest", "seed", "mode")
    others = [run for run in results["runs"] if any(run[name] != row[name] for name in key)]
    results["runs"] = sorted([*others, row], key=lambda run: [str(run[name]) for name in key])
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
