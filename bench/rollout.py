"""Measures the rollouts: the scheduler's policies simulated and on real engines, and the CPU of the agent loop.

`make bench-rollout` writes bench/results/rollout.json; `QUICK=1 make bench-rollout` is the short form with the same
keys, and prints instead of writing. `python -m bench.rollout --only simulated` measures one part and keeps the others.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from pathlib import Path
from typing import Any

from bench.provenance import describe_commit, describe_machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "rollout.json"
PARTS = {"simulated": "bench.rollout_simulated", "real": "bench.rollout_real", "loop": "bench.rollout_loop"}
"""Module of each part, with a function `measure(*, quick)` that returns keys of the result."""


def main() -> None:
    """Measure the parts of the command line, and write or print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="measure only this part (repeatable)")
    options = parser.parse_args()
    quick = bool(os.environ.get("QUICK"))
    results: dict[str, Any] = {}
    if RESULTS.exists() and not quick:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for part in options.only or PARTS:
        results |= importlib.import_module(PARTS[part]).measure(quick=quick)
        results.setdefault("measured", {})[part] = {
            "command": f"{'QUICK=1 ' if quick else ''}python -m bench.rollout --only {part}",
            "commit": describe_commit(),
            **describe_machine(),
            "load_average": round(os.getloadavg()[0], 1),
        }
        if not quick:
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
