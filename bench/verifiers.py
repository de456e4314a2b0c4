"""Measures rstar2_verify next to the verifiers of PyPI on the case files: `make bench-verifiers`.

Each of the others is in a venv of its own under .rstar2, with its own pins; `bench/verifiers_package.py` runs there.
All compare the same pairs: every pair that was written unseen, and every STEP-th one of the other case files (QUICK=1:
a tenth of them). An error of a verifier, or more than five seconds, counts as refused. The results are in
bench/results/verifiers.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rstar2_verify import verify
from rstar2_verify.limited import warm_up

from bench.provenance import describe_commit, describe_machine
from bench.verify import CASES, accepted_by_math_verify, percentiles

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "verifiers.json"
SCRIPT = ROOT / "bench" / "verifiers_package.py"
VENVS = ROOT / ".rstar2" / "verifiers"
PRM = ("sympy==1.14.0", "pylatexenc==2.10", "antlr4-python3-runtime==4.11.1", "tqdm", "packaging", "numpy")
PACKAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mathruler": ("mathruler==0.1.0", PRM),
    "verl math_reward": ("verl==0.9.1", PRM),
    "verl prime_math": ("verl==0.9.1", PRM),
    "latex2sympy2": ("latex2sympy2==1.9.1", ("sympy==1.14.0", "antlr4-python3-runtime==4.7.2")),
}
"""Verifier -> its package, installed without dependencies, and the packages that it needs."""
STEP = 16
"""Every n-th pair of the case files that were not written unseen."""
Case = dict[str, Any]
Answered = tuple[bool | None, float]
"""Whether a verifier accepts a pair, None for an error; and its CPU time in milliseconds."""


def package_python(package: str, needed: Sequence[str]) -> Path:
    """Return the Python of the venv with a package, which is created once."""
    folder = VENVS / package
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", package], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "mpmath", *needed], check=True)
        (folder / "installed").touch()
    return python


def ask(name: str, cases: Sequence[Case]) -> list[Answered]:
    """Return the verdicts of a verifier of PyPI."""
    pairs = "".join(json.dumps({key: case[key] for key in ("known", "answer")}) + "\n" for case in cases)
    argv = [str(package_python(*PACKAGES[name])), "-P", str(SCRIPT), name]  # -P: bench has a module `operator`
    done = subprocess.run(argv, input=pairs, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def timed(cases: Sequence[Case], *, own: bool) -> list[Answered]:
    """Return the verdicts of rstar2_verify, or of math-verify, in this process."""
    answered: list[Answered] = []
    for case in cases:
        start = time.process_time()
        if own:
            accepted = verify(case["known"], case["answer"]).outcome == "equal"
        else:
            accepted = accepted_by_math_verify(case["answer"], case["known"])
        answered.append((accepted, (time.process_time() - start) * 1000))
    return answered


def figures(cases: Sequence[Case], answered: Sequence[Answered]) -> dict[str, Any]:
    """Return the rates and the times of a verifier."""
    results: dict[str, Any] = {}
    for equal, key in ((True, "formsAccepted"), (False, "nearMissesRefused")):
        verdicts = [
            bool(accepted) for case, (accepted, _) in zip(cases, answered, strict=True) if case["equal"] is equal
        ]
        right = sum(verdict is equal for verdict in verdicts)
        results[key] = {"right": right, "of": len(verdicts), "rate": round(right / max(len(verdicts), 1), 4)}
    results["errors"] = sum(accepted is None for accepted, _ in answered)
    return results | percentiles(milliseconds for _, milliseconds in answered)


def read_cases(quick: bool) -> dict[str, list[Case]]:
    """Return the pairs that all verifiers compare: file -> cases."""
    files = {}
    for path in sorted(CASES.glob("*.jsonl")):
        cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        step = (1 if path.stem.startswith("unseen") else STEP) * (10 if quick else 1)
        files[path.stem] = cases[::step]
    return files


def main() -> None:
    """Measure all verifiers, print the table and write the results."""
    quick = os.environ.get("QUICK", "") not in ("", "0")
    files = read_cases(quick)
    cases = [case for part in files.values() for case in part]
    warm_up()
    answers = {"rstar2_verify": timed(cases, own=True), "math-verify": timed(cases, own=False)}
    answers |= {name: ask(name, cases) for name in PACKAGES}
    results: dict[str, Any] = {}
    table = Table(title="verifiers on the case files")
    for column in ("verifier", "pairs", "forms accepted", "near misses refused", "errors", "p50 ms", "p99 ms"):
        table.add_column(column)
    for name, answered in answers.items():
        results[name], start = {}, 0
        for file, part in files.items():
            results[name][file] = figures(part, answered[start : start + len(part)])
            start += len(part)
        unseen = [at for at, case in enumerate(cases) if "unseen" in case["source"]]
        for title, places in (("all", range(len(cases))), ("unseen", unseen)):
            measured = figures([cases[at] for at in places], [answered[at] for at in places])
            results[name][title] = measured
            rates = [f"{measured[key]['rate']:.2%}" for key in ("formsAccepted", "nearMissesRefused")]
            times = [str(measured[key]) for key in ("errors", "p50Milliseconds", "p99Milliseconds")]
            table.add_row(name, title, *rates, *times)
    Console(width=110).print(table)
    RESULTS.write_text(
        json.dumps(
            {
                "command": f"{'QUICK=1 ' if quick else ''}make bench-verifiers",
                "commit": describe_commit(),
                "machine": describe_machine(),
                "packages": {name: package for name, (package, _) in PACKAGES.items()},
                "verifiers": results,
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
