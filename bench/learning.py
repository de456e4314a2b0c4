"""What the tiny job learns, measured: three seeds of the whole curriculum, and GRPO-RoC against plain GRPO.

`make bench-learning` writes `bench/results/learning.json` and the plots in docs/pictures/. Each run is `rstar2 run` on
a manifest of examples/ with the seed changed and the held-out set sampled in full (480 problems, 4 samples each).
Finished runs are kept under `.rstar2/bench/`, so that an interrupted bench goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rstar2_train.api.loader import read_manifest
from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "learning.json"
SEEDS = (0, 1, 2)
SAMPLES = 4


def manifest(example: str, *, name: str, seed: int, folder: Path, resample: str | None = None) -> Path:
    """An example manifest for one run of the bench, written into `folder`."""
    data = read_manifest(ROOT / "examples" / example)
    data["metadata"]["name"] = name
    spec = data["spec"]
    spec["seed"] = seed
    if resample is not None:  # what is compared is the curve of the training steps
        spec["grpo"]["resample"] = {"mode": resample.capitalize()}
    else:
        spec["validation"] |= {"samples": SAMPLES, "maxProblems": None}
        for stage in spec["stages"]:
            if stage["type"] == "Evaluate":
                stage["evaluate"]["samples"] = SAMPLES
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def run(path: Path, state: Path) -> JobState:
    """Run a manifest to its end; a finished one returns at once. Raises CalledProcessError when it fails."""
    subprocess.run([sys.executable, "-m", "rstar2_train.cli", "run", str(path), "--state", str(state)], check=True)
    return JobState(state / path.stem)


def curriculum(seed: int, state: Path) -> dict[str, Any]:
    """One seed of examples/tiny.yaml."""
    job = run(manifest("tiny.yaml", name=f"tiny-{seed}", seed=seed, folder=state), state)
    return _result(job, "tiny", seed=seed, mode="paper")


def comparison(seed: int, mode: str, state: Path) -> dict[str, Any]:
    """One seed of examples/tiny-roc.yaml in one mode of resampling.

    Both modes start from the same SFT model: that of examples/tiny.yaml, whose SFT stage is the same, or else the one
    that the first mode trains.
    """
    name = f"roc-{mode}-{seed}"
    path = manifest("tiny-roc.yaml", name=name, seed=seed, folder=state, resample=mode)
    trained = (state / earlier / "stages" / "sft" for earlier in (f"tiny-{seed}", f"roc-paper-{seed}"))
    sft = next((folder for folder in trained if (folder / "outcome.json").exists()), None)
    if sft is not None and not (state / name).exists():
        shutil.copytree(sft, state / name / "stages" / "sft")
    job = run(path, state)
    return _result(job, "tiny-roc", seed=seed, mode=mode) | {"curve": error_curve(job)}


def error_curve(job: JobState) -> list[dict[str, float]]:
    """Tool-error ratio of correct rollouts at each step of the job's GRPO stages, from the trajectory files."""
    curve = []
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
    """The plots of docs/pictures/: slices over the stages, and the error curves of both modes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for mode, colour, label in (("paper", "tab:blue", "GRPO-RoC"), ("uniform", "tab:orange", "GRPO (uniform)")):
        curves = [one["curve"] for one in results["runs"] if one["manifest"] == "tiny-roc" and one["mode"] == mode]
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
        tiny = [one for one in results["runs"] if one["manifest"] == "tiny"]
        rows = [[s for s in one["stages"] if s["type"] in ("SFT", "GRPO")] for one in tiny]
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
    """Run what is missing, then write results and plots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=ROOT / ".rstar2" / "bench", help="where runs are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--only", choices=["runs", "comparison"], help="one half of the bench")
    parser.add_argument("--again", action="store_true", help="measure again what the results have already")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"runs": []}
    state = arguments.state.resolve()
    wanted = [("tiny", seed, "paper") for seed in arguments.seeds if arguments.only != "comparison"]
    wanted += [("tiny-roc", seed, mode) for seed in arguments.seeds for mode in ("paper", "uniform")
               if arguments.only != "runs"]  # fmt: skip
    for example, seed, mode in wanted:
        if arguments.again or not _has(results, example, seed, mode):
            _put(results, curriculum(seed, state) if example == "tiny" else comparison(seed, mode, state))
    plot(results, ROOT / "docs" / "pictures")


def _has(results: dict[str, Any], example: str, seed: int, mode: str) -> bool:
    return any((one["manifest"], one["seed"], one["mode"]) == (example, seed, mode) for one in results["runs"])


def _put(results: dict[str, Any], row: dict[str, Any]) -> None:
    """Add a run to the results, in place of an earlier one of the same kind, and write them."""
    key = ("manifest", "seed", "mode")
    others = [one for one in results["runs"] if any(one[name] != row[name] for name in key)]
    results["runs"] = sorted([*others, row], key=lambda one: [str(one[name]) for name in key])
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
