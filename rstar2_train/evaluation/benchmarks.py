"""Benchmarks: which files are asked, under which names. For the Evaluate stage and `rstar2 eval` alike.

A problem's id is `<benchmark>/<id>`: with the seed it names the random numbers of its samples, so the same benchmark
under the same name is sampled alike by both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rstar2_train.api.base import LABEL, PATTERNS
from rstar2_train.data.problems import DataError, Problem, read_problems
from rstar2_train.data.readers import SUFFIXES

SEED_NAME = "evaluation"
"""Follows the job's seed in the seed of every evaluation: the same problems meet the same random numbers."""


class BenchmarkFile(NamedTuple):
    """A benchmark's name and its file."""

    name: str
    file: Path


def parse_benchmarks(texts: Iterable[str], *, data: Path) -> list[BenchmarkFile]:
    """The benchmarks of `--benchmark FILE_OR_NAME[=FILE],...`, in the order given.

    `NAME=FILE` names a file; a file alone is named by its stem; a name alone is a file of that stem in `data`.
    Raises DataError for a file that is not there, a name that cannot be one, and a name given twice.
    """
    found: list[BenchmarkFile] = []
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, equals, file = text.partition("=")
        path = Path(file).expanduser() if equals else _find(name, data)
        name = name if equals else path.stem
        if not re.match(LABEL, name) or len(name) > 40:
            raise DataError(f"{text!r}: {name!r} cannot be a benchmark's name ({PATTERNS[LABEL]}); give NAME=FILE")
        if not path.is_file():
            raise DataError(f"{text!r}: no such file (looked at {path.absolute()})")
        if any(one.name == name for one in found):
            raise DataError(f"{text!r}: the name {name!r} is already given; give another one, NAME=FILE")
        found.append(BenchmarkFile(name, path))
    return found


def read_benchmarks(benchmarks: Iterable[BenchmarkFile]) -> Iterator[tuple[str, Problem]]:
    """Every problem with its benchmark's name; ids are made unique. Raises DataError as `read_problems` does."""
    for name, file in benchmarks:
        for problem in read_problems(file):
            yield name, dataclasses.replace(problem, id=f"{name}/{problem.id}")


def _find(text: str, data: Path) -> Path:
    """The file that a benchmark given without `=` is."""
    path = Path(text).expanduser()
    if path.is_file() or path.suffix in SUFFIXES:
        return path
    for suffix in SUFFIXES:
        if (data / f"{text}{suffix}").is_file():
            return data / f"{text}{suffix}"
    raise DataError(
        f"{text!r}: no such file, and none of that name ({', '.join(SUFFIXES)}) in {data.absolute()}; give NAME=FILE, "
        "or the folder of your benchmarks with --data"
    )
