"""Decontamination and near-duplicate removal on made-up problems with planted overlaps: what is found, time, memory.

`make bench-data` writes bench/results/data.json. The problems (25,000, 50,000 and 100,000 of them) are words with the
frequencies of natural text, between set phrases. Among them are planted some that share eight words in a row or more
with a made-up benchmark, and some that are others in slightly different words; and as many that only look like it and
must stay. Each size is prepared by a process of its own, beside one that reads and writes the same rows and does
nothing else.
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

from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.pipeline import DatasetSource, prepare
from rstar2_train.data.readers import read_rows

RESULTS = Path(__file__).parent / "results" / "data.json"
SIZES = (25_000, 50_000, 100_000)
BENCHMARK_PROBLEMS = 600
"""About as many as MATH-500, three years of AIME and HMMT have together."""
VOCABULARY = 4000
OPENINGS = (["find", "the", "number", "of"], ["let", "x", "be"], ["determine", "all"], [])
ENDINGS = (["find", "m", "plus", "n"], ["what", "is", "the", "remainder"], [])
"""At most four words, lest they make eight of another problem's with a few that are alike by chance."""
EDGE = "thus"
"""Around what is taken from a benchmark; not in the vocabulary, so that chance does not make it longer."""
PLANTED = {
    "overlap": 0.02,
    "near duplicate": 0.03,
    "seven shared words": 0.02,
    "another number": 0.03,
    "another answer": 0.01,
    "no numbers, common answer": 0.02,
}
"""Share of all problems. The first two must go; the others must stay, as must the plain ones."""
GO = ("overlap", "near duplicate")


@dataclass(frozen=True, slots=True)
class Made:
    """A made-up problem."""

    kind: str
    words: list[str]
    answer: int


class Maker:
    """Makes problems from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        syllables = [consonant + vowel for consonant in "bcdfghklmnprstvw" for vowel in "aeiou"]
        self._vocabulary = ["".join(self._rng.choices(syllables, k=self._rng.randint(2, 4))) for _ in range(VOCABULARY)]
        self._weights = list(accumulate(1 / (rank + 10) for rank in range(VOCABULARY)))

    def words(self, count: int, *, numbers: float = 0.16) -> list[str]:
        """`count` words, of which a share of `numbers` are numbers of one to five digits."""
        drawn = self._rng.choices(self._vocabulary, cum_weights=self._weights, k=count)
        return [self._number() if self._rng.random() < numbers else word for word in drawn]

    def plain(self) -> Made:
        """A problem like no other, but for the set phrases."""
        words = [*self._rng.choice(OPENINGS), *self.words(self._rng.randint(25, 90)), *self._rng.choice(ENDINGS)]
        return Made("plain", words, self._rng.randint(0, 999))

    def problems(self, count: int, benchmark: list[Made]) -> Iterator[Made]:
        """`count` problems, the planted ones among them; no problem has more than one planted near it."""
        weights = [1 - sum(PLANTED.values()), *PLANTED.values()]
        unused: list[Made] = []
        for kind in self._rng.choices(["plain", *PLANTED], weights=weights, k=count):
            if kind in ("overlap", "seven shared words"):
                yield self._with_words_of(self._rng.choice(benchmark).words, kind)
            elif kind == "no numbers, common answer":
                yield Made(kind, self.words(self._rng.randint(25, 90), numbers=0), self._rng.randint(0, 2))
            elif kind == "plain" or not unused:
                unused.append(self.plain())
                yield unused[-1]
            else:
                at = self._rng.randrange(len(unused))
                unused[at], unused[-1] = unused[-1], unused[at]
                yield self._like(unused.pop(), kind)

    def text(self, made: Made) -> str:
        """The problem in one of the ways in which it may be typeset."""
        shown = [self._typeset(word) for word in made.words]
        return "".join(f"{word}{self._rng.choice(('', '', '', ',', '.'))} " for word in shown).strip()

    def _with_words_of(self, problem: list[str], kind: str) -> Made:
        length = 7 if kind == "seven shared words" else self._rng.randint(8, min(30, len(problem)))
        start = self._rng.randint(0, len(problem) - length)
        shared = [EDGE, *problem[start : start + length], EDGE]
        around = [self.words(self._rng.randint(5, 40)) for _ in range(2)]
        return Made(kind, [*around[0], *shared, *around[1]], self._rng.randint(0, 999))

    def _like(self, other: Made, kind: str) -> Made:
        """A near duplicate of a problem, or one that differs from it in a number or in the answer alone."""
        words = list(other.words)
        if kind == "another answer":
            return Made(kind, words, other.answer + 1)
        if kind == "another number":
            words[self._rng.randrange(len(words))] = "123456"
            return Made(kind, words, other.answer)
        at = self._rng.choice([index for index, word in enumerate(words) if not word.isdecimal()])
        change = self._rng.choice(("only typeset otherwise", "word replaced", "word added", "sentence added"))
        if change == "word replaced":
            words[at] = "instead"
        elif change == "word added":
            words.insert(at, "additionally")
        elif change == "sentence added":
            words = ["please", "solve", "this", "problem", *words]
        return Made(kind, words, other.answer)

    def _number(self) -> str:
        return str(self._rng.randint(2, 10 ** self._rng.randint(1, 5)))

    def _typeset(self, word: str) -> str:
        if not word.isdecimal():
            return word.capitalize() if self._rng.random() < 0.1 else word
        grouped = f"{int(word):,}"
        return self._rng.choice((word, f"${word}$", grouped, "$" + grouped.replace(",", "{,}") + "$"))


def make(folder: Path, count: int) -> None:
    """Write `count` problems and their benchmark into `folder`; each problem says what kind it is of."""
    maker = Maker(seed=count)
    benchmark = [maker.plain() for _ in range(BENCHMARK_PROBLEMS)]
    for name, problems in (("benchmark", iter(benchmark)), ("problems", maker.problems(count, benchmark))):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for made in problems:
                row = {"problem": maker.text(made), "answer": str(made.answer), "kind": made.kind}
                file.write(json.dumps(row) + "\n")


def measured(folder: Path, *, compare: bool) -> dict[str, float]:
    """Seconds of wall clock and of CPU, and memory in MiB, of this very process: once a process.

    `compare`: prepare the problems; else only read and write them.
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


def one_size(count: int) -> dict[str, Any]:
    """Make, prepare and check `count` problems."""
    with tempfile.TemporaryDirectory(prefix="rstar2-data-") as name:
        folder = Path(name)
        make(folder, count)
        ours, copy = (_in_a_process(folder, what) for what in ("compare", "copy"))
        (output,) = folder.glob("out/*/problems.jsonl")
        left = Counter(row["problem"] for _, row in read_rows(output))
        kinds, stayed = Counter[str](), Counter[str]()
        for _, row in read_rows(folder / "problems.jsonl"):
            kinds[row["kind"]] += 1
            stayed[row["kind"]] += left[row["problem"]] > 0
        rules = json.loads((output.parent / "report.json").read_text(encoding="utf-8"))["removed"]
    return {
        "problems": count,
        "planted": dict(kinds),
        "removedByRule": {rule: entry["rows"]["all"] for rule, entry in rules.items()},
        "missed": sum(stayed[kind] for kind in GO),
        "wronglyRemoved": sum(kinds[kind] - stayed[kind] for kind in kinds if kind not in GO),
        "ours": {name: round(value, 2) for name, value in ours.items()},
        "copy": {name: round(value, 2) for name, value in copy.items()},
        "cpuRatio": round(ours["cpuSeconds"] / copy["cpuSeconds"], 1),
    }


def growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Exponents with which CPU time and added memory grow from the smallest to the largest size; 1 is linear."""
    first, last = rows[0], rows[-1]
    times = math.log(last["problems"] / first["problems"])
    figures = ("cpuSeconds", "addedMiB")
    return {name: round(math.log(last["ours"][name] / first["ours"][name]) / times, 2) for name in figures}


def show(rows: list[dict[str, Any]]) -> None:
    """A table for the terminal."""
    table = Table(title="decontamination and near duplicates")
    for column in ("problems", "to find", "missed", "wrong", "s", "CPU s", "to copy", "peak MiB", "added"):
        table.add_column(column, justify="right")
    for row in rows:
        ours, planted = row["ours"], sum(row["planted"][kind] for kind in GO)
        cells = [planted, row["missed"], row["wronglyRemoved"], ours["seconds"], ours["cpuSeconds"]]
        cells += [f"{row['cpuRatio']} x", ours["peakMiB"], ours["addedMiB"]]
        table.add_row(f"{row['problems']:,}", *map(str, cells))
    Console(width=110).print(table)


def _in_a_process(folder: Path, what: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.data", "--measure", what, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _peak_mib() -> float:
    """From the kernel's own count for this program; `getrusage` would also count the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Every size, then the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="default: %(default)s")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        what, folder = given.measure
        print(json.dumps(measured(Path(folder), compare=what == "compare")))
        return
    rows = [one_size(count) for count in given.sizes]
    show(rows)
    result = {"sizes": rows, "growth": growth(rows)}
    print(json.dumps(result["growth"]))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
