"""Measures every objective on the tiny task: a GRPO stage with Uniform and with Resample-on-Correct, three seeds each.

    python -m bench.objectives [--only NAME] [--modes uniform roc] [--seeds 0 1 2] [--state FOLDER]

`make bench-objectives` writes bench/results/objectives.json and docs/pictures/objectives.svg:

- NAME: {uniform: {pass_at_1: [..], tool_errors: [..], step_seconds: [..], tokens: [..], reward: [[..], ..]}, roc: ..}:
  one value per seed; `tokens` are sampled tokens of the stage, `reward` the mean reward of each step.
- `distillation`: {score, tokens, grpo_score, grpo_tokens, sft_score, teacher_score}: pass@1 and sampled tokens of a
  stage of Distillation, next to those of GRPO (uniform) from the same SFT model, whose pass@1 is `sft_score`. The
  teacher is the model after stage rl-2 of examples/tiny.yaml, which stands for the stage at 12K tokens. The tokens that
  trained it are not counted.
- `seeds` and `runs` of each of these: the seeds, and the commits and load averages of the machine during the runs.
- `run`: the command of the last call, and the machine.

`QUICK=1 make bench-objectives` runs two objectives for three steps of the smoke task, and Distillation for one. It
writes the same figures under `quick`: this shows that the types run, not how well they learn. All runs of a seed start
from the same SFT model. Each run is `rstar2 run`; complete jobs stay in the state folder, so that an interrupted
benchmark resumes. Custom needs a file and is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.learning import (
    error_curve,
    last_tool_errors,
    run_from_sft,
    runs_of,
    save_manifest,
    stage_report,
    step_seconds,
)
from bench.provenance import ROOT, describe_command, describe_machine
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.objectives import OBJECTIVES
from rstar2_train.rollout import trajectory_store

RESULTS = ROOT / "bench" / "results" / "objectives.json"
PICTURE = ROOT / "docs" / "pictures" / "objectives.svg"
NAMES = [name for name in OBJECTIVES if name not in ("Custom", "Distillation")]
QUICK_NAMES = ["GRPO", "GSPO"]
MODES = {"uniform": "Uniform", "roc": "Paper"}
DISTILLED = {"steps": 30, "rolloutsPerPrompt": 5, "keepPerPrompt": 5, "updatesPerStep": 4}
"""Settings of the stage with a teacher. It trains on each rollout, so a group has 5 of them in place of 16."""


def write_manifest(name: str, mode: str, seed: int, folder: Path, *, quick: bool, teacher: Path | None = None) -> Path:
    """Write the manifest of one run, SFT and one GRPO stage, and return its path; `teacher`: of Distillation."""
    data = read_manifest(ROOT / "examples" / ("smoke.yaml" if quick else "tiny-roc.yaml"))
    spec = data["spec"]
    sft, rl = [stage for stage in spec["stages"] if stage["type"] in ("SFT", "GRPO")][:2]
    objective: dict[str, Any] = {"type": name}
    if teacher is not None:
        objective |= {"teacher": {"source": str(teacher)}}
        rl["grpo"] |= {**DISTILLED, "steps": 1} if quick else DISTILLED
    spec["stages"] = [sft, rl | {"name": "rl"}]
    spec["grpo"] |= {"objective": objective, "resample": {"mode": MODES[mode]}}
    return _write(data, f"{name.lower()}-{mode}", seed, folder, quick=quick)


def write_teacher_manifest(seed: int, folder: Path, *, quick: bool) -> Path:
    """Write the manifest that trains the teacher, SFT and the first two RL stages of a curriculum; return its path."""
    data = read_manifest(ROOT / "examples" / ("smoke.yaml" if quick else "tiny.yaml"))
    data["spec"]["stages"] = [stage for stage in data["spec"]["stages"] if stage["name"] in ("sft", "rl-1", "rl-2")]
    return _write(data, "teacher", seed, folder, quick=quick)


def _write(data: dict[str, Any], name: str, seed: int, folder: Path, *, quick: bool) -> Path:
    data["spec"]["seed"] = seed
    if not quick:
        data["spec"]["validation"] |= {"samples": 4, "maxProblems": None}
    return save_manifest(data, f"{'quick' if quick else 'objective'}-{name}-{seed}", folder)


def measure(path: Path, state: Path) -> dict[str, Any]:
    """Run one objective, or read its complete run, and return its figures."""
    job = run_from_sft(path, state)
    curve = error_curve(job)
    folder = job.stage("rl").trajectories
    return {
        "sft_score": stage_report(job, "sft")["pass_at_1"],
        "pass_at_1": stage_report(job, "rl")["pass_at_1"],
        "tool_errors": last_tool_errors(curve),
        "step_seconds": step_seconds(folder),
        "tokens": _sampled_tokens(folder),
        "reward": [round(point["reward"], 4) for point in curve],
    }


def measure_distillation(seeds: list[int], state: Path, *, quick: bool) -> dict[str, Any]:
    """Distil the teacher of each seed into its SFT model, and measure GRPO (uniform) from the same SFT model."""
    rows, paths = [], []
    for seed in seeds:
        alone = write_manifest("GRPO", "uniform", seed, state, quick=quick)
        taught = write_teacher_manifest(seed, state, quick=quick)
        grpo, teacher = measure(alone, state), run_from_sft(taught, state)
        model = teacher.stage("rl-2").model
        path = write_manifest("Distillation", "uniform", seed, state, quick=quick, teacher=model)
        own = measure(path, state)
        figures = {"score": own["pass_at_1"], "tokens": own["tokens"], "sft_score": own["sft_score"]}
        figures |= {"grpo_score": grpo["pass_at_1"], "grpo_tokens": grpo["tokens"]}
        rows.append(figures | {"teacher_score": stage_report(teacher, "rl-2")["pass_at_1"]})
        paths += [alone, taught, path]
    return _by_name(rows) | {"seeds": seeds, "runs": runs_of(paths)}


def _by_name(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


def _sampled_tokens(folder: Path) -> int:
    """Return the tokens that the policy sampled in a stage."""
    rollouts = [rollout for file in folder.glob("step-*.parquet") for rollout in trajectory_store.read(file)]
    segments = [segment for rollout in rollouts for segment in rollout.segments if segment.kind == "model"]
    return sum(len(segment.token_ids) for segment in segments)


def plot(results: dict[str, Any], file: Path, *, title: str) -> None:
    """Draw the reward of each step under each objective, in one colour: each seed, and their mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    modes = [mode for mode in MODES if any(mode in results.get(name, {}) for name in NAMES)]
    figure, axes = pyplot.subplots(1, len(modes), figsize=(2 + 5 * len(modes), 4), sharey=True, squeeze=False)
    lines = {}
    for mode, axis in zip(modes, axes[0], strict=True):
        for number, name in enumerate(NAMES):
            curves, colour = results.get(name, {}).get(mode, {}).get("reward", []), f"C{number}"
            for curve in curves if len(curves) > 1 else ():
                axis.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.2)
            if curves:
                mean = [fmean(column) for column in zip(*curves, strict=False)]
                label = f"{name}, {len(curves)} seed{'s' * (len(curves) > 1)}"
                lines[label] = axis.plot(range(1, len(mean) + 1), mean, color=colour, linewidth=2)[0]
        axis.set(xlabel="step", title={"uniform": "uniform", "roc": "Resample-on-Correct"}[mode], ylim=(0, 1))
    axes[0][0].set(ylabel="mean reward of the rollouts")
    axes[0][-1].legend(lines.values(), lines, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(title, fontsize="medium")
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    """Run the missing runs, and write or print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*NAMES, "distillation"]
    parser.add_argument("--only", choices=names, action="append", help="measure only this (repeatable)")
    parser.add_argument("--modes", choices=MODES, nargs="+", default=list(MODES), help="selections (default: both)")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds (default: 0 1 2; 0 in the short form)")
    parser.add_argument("--state", type=Path, default=ROOT / ".rstar2" / "bench", help="folder of the jobs")
    options = parser.parse_args()
    quick = bool(os.environ.get("QUICK"))
    seeds = options.seeds or ([0] if quick else [0, 1, 2])
    everything: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results = everything.setdefault("quick", {}) if quick else everything
    state = options.state.resolve()
    for name in options.only or [*(QUICK_NAMES if quick else NAMES), "distillation"]:
        if name == "distillation":
            results[name] = measure_distillation(seeds, state, quick=quick)
        for mode in options.modes if name != "distillation" else ():
            paths = [write_manifest(name, mode, seed, state, quick=quick) for seed in seeds]
            figures = _by_name([measure(path, state) for path in paths])
            results.setdefault(name, {})[mode] = figures | {"seeds": seeds, "runs": runs_of(paths)}
        results["run"] = {"command": describe_command("bench.objectives"), "machine": describe_machine()}
        RESULTS.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    is_newest = not quick or not any(name in everything for name in NAMES)
    if is_newest and any(name in results for name in NAMES):
        plot(results, PICTURE, title="3 steps of the smoke task: no comparison" if quick else "the tiny task")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
