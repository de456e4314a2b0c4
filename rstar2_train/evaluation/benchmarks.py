"""The benchmark files of an Evaluate stage or of `rstar2 eval`, and their problems.

The id of a problem is `<benchmark>/<id>`. Id and seed determine the random numbers of its samples, so stage and command
sample a benchmark of the same name equally.
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
from rstar2_train.utils.local_path import file_fault, local_path

SEED_NAME = "evaluation"
"""Second part of the seed of every evaluation, after the job's seed."""


class BenchmarkFile(NamedTuple):
    """A benchmark's name and its file."""

    name: str
    file: Path


def parse_benchmarks(texts: Iterable[str], *, data: Path) -> list[BenchmarkFile]:
    """Return the benchmarks of `--benchmark FILE_OR_NAME[=FILE],...`, in the order of the arguments.

    `NAME=FILE` sets the name of a file. The default name of a file is its stem. A name without a file selects the file
    with that stem in `data`. Raises DataError for a missing file, an invalid name or a duplicate name.
    """
    benchmarks: list[BenchmarkFile] = []
    for text in (part.strip() for argument in texts for part in argument.split(",")):
        name, equals, file = text.partition("=")
        path = _expanded(file) if equals else _file_of(name, data)
        name = name if equals else path.stem
        if not re.match(LABEL, name) or len(name) > 40:
            raise DataError(f"{text!r}: invalid benchmark name {name!r} ({PATTERNS[LABEL]}); set a name with NAME=FILE")
        if fault := file_fault(path):
            raise DataError(f"{text!r}: {fault}: {path.absolute()}")
        if any(benchmark.name == name for benchmark in benchmarks):
            raise DataError(f"{text!r}: duplicate benchmark name {name!r}; set another name with NAME=FILE")
        benchmarks.append(BenchmarkFile(name, path))
    return benchmarks


def read_benchmarks(benchmarks: Iterable[BenchmarkFile]) -> Iterator[tuple[str, Problem]]:
    """Yield (benchmark name, problem) with unique ids for every problem. Raises DataError as `read_problems` does."""
    for name, file in benchmarks:
        for problem in read_problems(file):
            yield name, dataclasses.replace(problem, id=f"{name}/{problem.id}")


def _expanded(text: str) -> Path:
    try:
        return local_path(text)
    except ValueError as error:
        raise DataError(str(error)) from error


def _file_of(text: str, data: Path) -> Path:
    """Return the file of an argument without `=`: a path, or a stem in `data`."""
    path = _expanded(text)
    if path.is_file() or path.suffix in SUFFIXES:
        return path
    for suffix in SUFFIXES:
        if (data / f"{text}{suffix}").is_file():
            return data / f"{text}{suffix}"
    raise DataError(
        f"{text!r}: no such file, and no file of that name ({', '.join(SUFFIXES)}) in {data.absolute()}; "
        "use NAME=FILE, or set the folder of the benchmarks with --data"
    )
