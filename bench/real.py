"""Measures a pretrained model on word problems that it never trained on: SmolLM2-135M, GRPO-RoC and plain GRPO.

    python -m bench.real [--seeds 0 1 2] [--modes roc plain] [--state FOLDER]

`make bench-real` writes bench/results/real.json: {sft: {seen: [..], rl_only: [..], held_out: [..]}, roc: {...},
plain: {...}}, with pass@1 of each seed; `errors` has their standard errors, `gain` the mean gain on the held-out
families over SFT and its standard error over the seeds. `seconds_per_step` and `tool_errors` (of correct rollouts, in
the last eight steps) have one value per seed. Each run is examples/smollm2.yaml with another seed or `resample.mode`,
and 4 samples per problem. Both modes start from the SFT model of the seed. Complete runs are reused, so that the
benchmark can be made in parts.

`QUICK=1 make bench-real` trains for two steps of SFT and of RL, and samples once: it shows that it runs, and no more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
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
from scripts import smollm2

RESULTS = ROOT / "bench" / "results" / "real.json"
MODES = {"roc": "Paper", "plain": "Uniform"}
SLICES = {"seen": "seen", "rl_only": "rl-only", "held_out": "held-out"}
"""Key of the results -> slice of the report."""


def write_manifest(mode: str, seed: int, folder: Path, *, quick: bool) -> Path:
    """Write the manifest of one run and return its path."""
    data = read_manifest(ROOT / "examples" / "smollm2.yaml")
    spec = data["spec"]
    spec["seed"] = seed
    spec["model"]["source"] = str(smollm2.MODEL)
    spec["grpo"]["resample"] = {"mode": MODES[mode]}
    spec["validation"]["samples"] = 1 if quick else 4
    if quick:
        spec["validation"]["maxProblems"] = 16
        spec["stages"][0]["sft"]["epochs"] = 0.067
        spec["stages"][1]["grpo"]["steps"] = 2
    return save_manifest(data, f"{'quickreal' if quick else 'real'}-{mode}-{seed}", folder)


def measure(path: Path, state: Path) -> dict[str, Any]:
    """Run one manifest, or read its complete run, and return its figures."""
    job = run_from_sft(path, state)
    return {
        "sft": stage_report(job, "sft")["slices"],
        "rl": stage_report(job, "rl")["slices"],
        "seconds_per_step": step_seconds(job.stage("rl").trajectories),
        "tool_errors": last_tool_errors(error_curve(job)),
    }


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the results of the runs of each mode, in the order of the seeds."""
    results: dict[str, Any] = {"errors": {}, "gain": {}, "seconds_per_step": {}, "tool_errors": {}}
    columns = {"sft": [row["sft"] for row in next(iter(runs.values()))]}
    columns |= {mode: [row["rl"] for row in rows] for mode, rows in runs.items()}
    for name, rows in columns.items():
        for target, field in ((results, "pass_at_1"), (results["errors"], "pass_at_1_se")):
            target[name] = {key: [row[slice_][field] for row in rows] for key, slice_ in SLICES.items()}
    for mode, rows in runs.items():
        gains = [row["rl"]["held-out"]["pass_at_1"] - row["sft"]["held-out"]["pass_at_1"] for row in rows]
        error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None
        results["gain"][mode] = {"mean": statistics.fmean(gains), "standard_error": error}
        for key in ("seconds_per_step", "tool_errors"):
            results[key][mode] = [row[key] for row in rows]
    return results


def main() -> int:
    """Run the missing runs, and write and print the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds (default: 0 1 2; 0 in the short form)")
    parser.add_argument("--modes", choices=MODES, nargs="+", default=list(MODES), help="selections (default: both)")
    parser.add_argument("--state", type=Path, default=ROOT / ".rstar2" / "bench", help="folder of the jobs")
    options = parser.parse_args()
    if code := smollm2.main():
        return code
    quick = bool(os.environ.get("QUICK"))
    seeds = options.seeds or ([0] if quick else [0, 1, 2])
    state = options.state.resolve()
    paths = {mode: [write_manifest(mode, seed, state, quick=quick) for seed in seeds] for mode in options.modes}
    results = summary({mode: [measure(path, state) for path in of_mode] for mode, of_mode in paths.items()})
    results |= {"seeds": seeds, "runs": runs_of([path for of_mode in paths.values() for path in of_mode])}
    results["run"] = {"command": describe_command("bench.real"), "machine": describe_machine()}
    everything: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    everything = everything | {"quick": results} if quick else {"quick": everything.get("quick")} | results
    RESULTS.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
