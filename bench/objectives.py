"""Measures every objective on the tiny task: a GRPO stage with Uniform and with Resample-on-Correct, three seeds each.

    python -m bench.objectives [--only NAME] [--seeds 0 1 2] [--state FOLDER]

`make bench-objectives` writes bench/results/objectives.json: {NAME: {uniform: {pass_at_1: [..], tool_errors: [..],
step_seconds: [..]}, roc: {..}}, run: {..}}. `QUICK=1 make bench-objectives` runs some objectives for three steps of the
smoke task, and writes the same figures under `quick`: this shows that the types run, not how well they learn. `run` has
the measured objectives, the command, the commit and the machine. All runs of a seed start from the same SFT model. Each
run is `rstar2 run`; complete jobs stay in the state folder, so that an interrupted benchmark resumes. Custom and
Distillation need a file and a teacher, and are not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from bench.learning import error_curve, run
from bench.provenance import ROOT, describe_commit, describe_machine
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.objectives import OBJECTIVES

RESULTS = ROOT / "bench" / "results" / "objectives.json"
NAMES = [name for name in OBJECTIVES if name not in ("Custom", "Distillation")]
QUICK_NAMES = ["GRPO", "DrGRPO", "GSPO", "RLOO"]
MODES = {"uniform": "Uniform", "roc": "Paper"}
LAST_STEPS = 8
"""Steps at the end of a stage whose rollouts give the tool errors."""


def write_manifest(name: str, mode: str, seed: int, folder: Path, *, quick: bool) -> Path:
    """Write the manifest of one run, SFT and one GRPO stage, and return its path."""
    data = read_manifest(ROOT / "examples" / ("smoke.yaml" if quick else "tiny-roc.yaml"))
    spec = data["spec"]
    sft, rl = [stage for stage in spec["stages"] if stage["type"] in ("SFT", "GRPO")][:2]
    spec["stages"] = [sft, rl | {"name": "rl"}]
    spec["seed"] = seed
    spec["grpo"] |= {"objective": {"type": name}, "resample": {"mode": MODES[mode]}}
    if not quick:
        spec["validation"] |= {"samples": 4, "maxProblems": None}
    data["metadata"]["name"] = f"{'quick' if quick else 'objective'}-{name.lower()}-{mode}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data['metadata']['name']}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def measure(name: str, mode: str, seed: int, state: Path, *, quick: bool) -> dict[str, float]:
    """Run one objective, or read its complete run, and return its figures."""
    path = write_manifest(name, mode, seed, state, quick=quick)
    kind = path.stem.partition("-")[0]
    trained = [folder for folder in state.glob(f"{kind}-*-{seed}/stages/sft") if (folder / "outcome.json").exists()]
    if trained and not (state / path.stem).exists():
        shutil.copytree(trained[0], state / path.stem / "stages" / "sft")
    job = run(path, state)
    report = json.loads(job.report_file.read_text(encoding="utf-8"))
    stage = next(each for each in report["stages"] if each["name"] == "rl")
    errors = [point["tool_error_ratio_correct"] for point in error_curve(job)[-LAST_STEPS:]]
    measured = [value for value in errors if value == value]  # a step without a correct rollout has none
    return {
        "pass_at_1": stage["pass_at_1"],
        "tool_errors": sum(measured) / len(measured) if measured else float("nan"),
        "step_seconds": _step_seconds(job.stage("rl").trajectories),
    }


def _step_seconds(folder: Path) -> float:
    """Return the mean seconds between the ends of the rollouts of two steps."""
    times = [file.stat().st_mtime for file in sorted(folder.glob("step-*.parquet"))]
    return (times[-1] - times[0]) / max(1, len(times) - 1)


def main() -> None:
    """Run the missing runs, and write or print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=NAMES, action="append", help="measure only this objective (repeatable)")
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds (default: 0 1 2; 0 in the short form)")
    parser.add_argument("--state", type=Path, default=ROOT / ".rstar2" / "bench", help="folder of the jobs")
    options = parser.parse_args()
    quick = bool(os.environ.get("QUICK"))
    seeds = options.seeds or ([0] if quick else [0, 1, 2])
    everything: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    results = everything.setdefault("quick", {}) if quick else everything
    for name in options.only or (QUICK_NAMES if quick else NAMES):
        results[name] = {}
        for mode in ["roc"] if quick else MODES:
            rows = [measure(name, mode, seed, options.state.resolve(), quick=quick) for seed in seeds]
            results[name][mode] = {key: [row[key] for row in rows] for key in rows[0]}
        results["run"] = {
            "measured": [name for name in NAMES if name in results],
            "command": f"{'QUICK=1 ' if quick else ''}python -m bench.objectives{' --only NAME' * bool(options.only)}",
            "seeds": seeds,
            "commit": describe_commit(),
            "machine": describe_machine(),
        }
        RESULTS.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
