"""Measures the training step as a pipeline; each key of the result is one function in a module of its own.

`make bench-pipeline` writes bench/results/pipeline.json; `QUICK=1 make bench-pipeline` is the short form with the same
keys, and prints instead of writing. `python -m bench.pipeline --only weights` measures one key and keeps the others.
A stopped benchmark resumes: finished runs are not repeated. To repeat them, delete the runs folder under `.rstar2/`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.provenance import describe_commit, describe_machine
from rstar2_train.utils.supervisor import StopRequested

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "pipeline.json"
KEYS = {
    "long_tail": "bench.pipeline_long_tail",
    "staleness": "bench.pipeline_staleness",
    "weights": "bench.pipeline_weights",
}
"""Module of each key, with a function `measure(*, quick)`."""


def main() -> None:
    """Measure the keys of the command line, and write or print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(KEYS), action="append", help="measure only this key (repeatable)")
    options = parser.parse_args()
    quick = bool(os.environ.get("QUICK"))
    wanted = options.only or sorted(KEYS)
    results: dict[str, Any] = {}
    if RESULTS.exists() and not quick:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for key in wanted:
        measured = importlib.import_module(KEYS[key]).measure(quick=quick)
        results[key] = measured | {
            "command": _command(key),
            "commit": describe_commit(),
            "machine": describe_machine(),
        }
        text = json.dumps(results, indent=1) + "\n"
        if not quick:
            RESULTS.write_text(text, encoding="utf-8")
    print(json.dumps(results, indent=1))


def _command(key: str) -> str:
    return f"python -m bench.pipeline --only {key}"


if __name__ == "__main__":
    try:
        main()
    except StopRequested as stop:
        print(f"{stop}; the next run resumes with the unfinished part", file=sys.stderr)
        sys.exit(stop.exit_code)
