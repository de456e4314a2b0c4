"""Measures decontamination and near-duplicate removal on generated problems: accuracy, time and memory.

`make bench-data` writes bench/results/data.json. The 25,000, 50,000 and 100,000 problems have random words with the
frequencies of natural text, between common phrases. Some of them share eight or more consecutive words with a generated
benchmark, or are near duplicates of other problems. Others only look like it and must stay. A separate process prepares
each size, and another one only copies the same rows for comparison.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.process_memory import status_kibibytes
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import DatasetSource, prepare
from rstar2_train.data.readers import read_rows

RESULTS = Path(__file__).parent / "results" / "data.json"
SIZES = (25_000, 50_000, 100_000)
BENCHMARK_PROBLEMS = 600
"""About the size of MATH-500 with three years of AIME and HMMT."""
VOCABULARY = 4000
OPENINGS: tuple[list[str], ...] = (["find", "the", "number", "of"], ["let", "x", "be"], ["determine", "all"], [])
ENDINGS: tuple[list[str], ...] = (["find", "m", "plus", "n"], ["what", "is", "the", "remainder"], [])
"""At most four words, so that a phrase with a few random matches does not have eight shared words."""
EDGE = "thus"
"""Word around a sequence of a benchmark; not in the vocabulary, so that the shared sequence is not longer by chance."""
PLANTED = {
    "overlap": 0.02,
    "near duplicate": 0.03,
    "seven shared words": 0.02,
    "another number": 0.03,
    "another answer": 0.01,
    "no numbers, common answer": 0.02,
}
"""Kind of problem -> share of all problems. The kinds in `REMOVED` must be removed, the others and plain ones kept."""
REMOVED = ("overlap", "near duplicate")


@dataclass(frozen=True, slots=True)
class GeneratedProblem:
    """A generated problem."""

    kind: str
    parts: list[str]
    """Words and numbers."""
    answer: int


class ProblemGenerator:
    """Generates problems from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        syllables = [consonant + vowel for consonant in "bcdfghklmnprstvw" for vowel in "aeiou"]
        self._vocabulary = ["".join(self._rng.choices(syllables, k=self._rng.randint(2, 4))) for _ in range(VOCABULARY)]
        self._weights = list(accumulate(1 / (rank + 10) for rank in range(VOCABULARY)))

    def parts(self, count: int, *, numbers: float = 0.16) -> list[str]:
        """Return `count` words, of which a share of `numbers` are numbers of one to five digits."""
        drawn = self._rng.choices(self._vocabulary, cum_weights=self._weights, k=count)
        return [self._number() if self._rng.random() < numbers else word for word in drawn]

    def plain(self) -> GeneratedProblem:
        """Return a problem that shares only common phrases with others."""
        parts = [*self._rng.choice(OPENINGS), *self.parts(self._rng.randint(25, 90)), *self._rng.choice(ENDINGS)]
        return GeneratedProblem("plain", parts, self._rng.randint(0, 999))

    def problems(self, count: int, benchmark: list[GeneratedProblem]) -> Iterator[GeneratedProblem]:
        """Yield `count` problems with the planted ones. Each plain problem has at most one variant."""
        weights = [1 - sum(PLANTED.values()), *PLANTED.values()]
        unused: list[GeneratedProblem] = []
        for kind in self._rng.choices(["plain", *PLANTED], weights=weights, k=count):
            if kind in ("overlap", "seven shared words"):
                yield self._with_overlap(self._rng.choice(benchmark).parts, kind)
            elif kind == "no numbers, common answer":
                yield GeneratedProblem(kind, self.parts(self._rng.randint(25, 90), numbers=0), self._rng.randint(0, 2))
            elif kind == "plain" or not unused:
                unused.append(self.plain())
                yield unused[-1]
            else:
                index = self._rng.randrange(len(unused))
                unused[index], unused[-1] = unused[-1], unused[index]
                yield self._variant(unused.pop(), kind)

    def text(self, problem: GeneratedProblem) -> str:
        """Return the text of a problem with random typesetting."""
        typeset = [self._typeset(part) for part in problem.parts]
        return "".join(f"{part}{self._rng.choice(('', '', '', ',', '.'))} " for part in typeset).strip()

    def _with_overlap(self, problem: list[str], kind: str) -> GeneratedProblem:
        length = 7 if kind == "seven shared words" else self._rng.randint(8, min(30, len(problem)))
        start = self._rng.randint(0, len(problem) - length)
        shared = [EDGE, *problem[start : start + length], EDGE]
        around = [self.parts(self._rng.randint(5, 40)) for _ in range(2)]
        return GeneratedProblem(kind, [*around[0], *shared, *around[1]], self._rng.randint(0, 999))

    def _variant(self, other: GeneratedProblem, kind: str) -> GeneratedProblem:
        """Return a near duplicate of a problem, or a problem that differs in one number or the answer only."""
        parts = list(other.parts)
        if kind == "another answer":
            return GeneratedProblem(kind, parts, other.answer + 1)
        if kind == "another number":
            parts[self._rng.randrange(len(parts))] = "123456"
            return GeneratedProblem(kind, parts, other.answer)
        position = self._rng.choice([index for index, part in enumerate(parts) if not part.isdecimal()])
        change = self._rng.choice(("typeset", "replace word", "add word", "add sentence"))
        if change == "replace word":
            parts[position] = "instead"
        elif change == "add word":
            parts.insert(position, "additionally")
        elif change == "add sentence":
            parts = ["please", "solve", "this", "problem", *parts]
        return GeneratedProblem(kind, parts, other.answer)

    def _number(self) -> str:
        return str(self._rng.randint(2, 10 ** self._rng.randint(1, 5)))

    def _typeset(self, word: str) -> str:
        if not word.isdecimal():
            return word.capitalize() if self._rng.random() < 0.1 else word
        grouped = f"{int(word):,}"
        return self._rng.choice((word, f"${word}$", grouped, "$" + grouped.replace(",", "{,}") + "$"))


def generate(folder: Path, count: int) -> None:
    """Write `count` problems, with their kind, and their benchmark into `folder`."""
    generator = ProblemGenerator(seed=count)
    benchmark = [generator.plain() for _ in range(BENCHMARK_PROBLEMS)]
    for name, problems in (("benchmark", iter(benchmark)), ("problems", generator.problems(count, benchmark))):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for problem in problems:
                row = {"problem": generator.text(problem), "answer": str(problem.answer), "kind": problem.kind}
                file.write(json.dumps(row) + "\n")


def measure(folder: Path, *, compare: bool) -> dict[str, float]:
    """Return wall time, CPU time and memory in MiB of this process. Call it once per process.

    `compare`: prepare the problems; otherwise only copy them.
    """
    before, wall, cpu = _peak_mib(), time.perf_counter(), time.process_time()
    if compare:
        source = DatasetSource(LAYOUTS["problems"], (folder / "problems.jsonl",))
        prepare([source], out=folder / "out", against=[folder / "benchmark.jsonl"])
    else:
        with (folder / "copy.jsonl").open("w", encoding="utf-8") as copy:
            for _, row in read_rows(folder / "problems.jsonl"):
                copy.write(json.dumps(row) + "\n")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"seconds": wall, "cpuSeconds": cpu, "peakMiB": _peak_mib(), "addedMiB": _peak_mib() - before}


def run_size(count: int) -> dict[str, Any]:
    """Generate, prepare and check `count` problems."""
    with tempfile.TemporaryDirectory(prefix="rstar2-data-") as name:
        folder = Path(name)
        generate(folder, count)
        ours, copy = (_measure_in_process(folder, mode) for mode in ("compare", "copy"))
        (output,) = folder.glob("out/*/problems.jsonl")
        remaining = Counter(row["problem"] for _, row in read_rows(output))
        kinds, kept = Counter[str](), Counter[str]()
        for _, row in read_rows(folder / "problems.jsonl"):
            kinds[row["kind"]] += 1
            kept[row["kind"]] += remaining[row["problem"]] > 0
        rules = json.loads((output.parent / "report.json").read_text(encoding="utf-8"))["removed"]
    return {
        "problems": count,
        "planted": dict(kinds),
        "removedByRule": {rule: entry["rows"]["all"] for rule, entry in rules.items()},
        "missed": sum(kept[kind] for kind in REMOVED),
        "wronglyRemoved": sum(kinds[kind] - kept[kind] for kind in kinds if kind not in REMOVED),
        "ours": {name: round(value, 2) for name, value in ours.items()},
        "copy": {name: round(value, 2) for name, value in copy.items()},
        "cpuRatio": round(ours["cpuSeconds"] / copy["cpuSeconds"], 1),
    }


def growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the growth exponents of CPU time and added memory from the smallest to the largest size; 1 is linear."""
    first, last = rows[0], rows[-1]
    times = math.log(last["problems"] / first["problems"])
    figures = ("cpuSeconds", "addedMiB")
    return {name: round(math.log(last["ours"][name] / first["ours"][name]) / times, 2) for name in figures}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the results of all sizes."""
    table = Table(title="decontamination and near duplicates")
    columns = (
        "problems",
        "planted",
        "missed",
        "wrongly\nremoved",
        "wall s",
        "CPU s",
        "CPU vs\ncopy",
        "peak\nMiB",
        "added\nMiB",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        ours, planted = row["ours"], sum(row["planted"][kind] for kind in REMOVED)
        cells = [planted, row["missed"], row["wronglyRemoved"], ours["seconds"], ours["cpuSeconds"]]
        cells += [f"{row['cpuRatio']} x", ours["peakMiB"], ours["addedMiB"]]
        table.add_row(f"{row['problems']:,}", *map(str, cells))
    Console(width=110).print(table)


def _measure_in_process(folder: Path, mode: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.data", "--measure", mode, str(folder)]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(completed.stdout)
    return figures


def _peak_mib() -> float:
    return status_kibibytes("VmHWM") / 1024


def main() -> None:
    """Run all sizes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of problems (default: %(default)s)"
    )
    parser.add_argument("--measure", nargs=2, metavar=("MODE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        mode, folder = arguments.measure
        print(json.dumps(measure(Path(folder), compare=mode == "compare")))
        return
    rows = [run_size(count) for count in arguments.sizes]
    print_table(rows)
    result = {"sizes": rows, "growth": growth(rows)}
    print(json.dumps(result["growth"]))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
