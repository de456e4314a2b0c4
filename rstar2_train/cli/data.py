"""`rstar2 data prepare|inspect|decontaminate`: from public datasets to the files that a manifest names.

Arguments, progress and tables; what is done is in data/prepare/pipeline.py and data/prepare/inspect.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.records import RULES, DatasetLayout, as_json
from rstar2_train.data.readers import DataError
from rstar2_train.utils.options import count

if TYPE_CHECKING:
    from rstar2_train.data.prepare.inspect import InspectionReport
    from rstar2_train.data.prepare.pipeline import PreparedDataset, Watch

_DEFAULT = PrepareSettings()
_LAYOUT_LIST = "\n".join(f"  {name:18} {layout.holds}: {layout.dataset}" for name, layout in LAYOUTS.items())
EPILOG = """examples:
  rstar2 data inspect math500=math500.jsonl        what is in a file, and what becomes of it
  rstar2 data prepare dapo=DAPO-Math-17k-Processed@en --against math500.jsonl --out data/rl
  rstar2 data decontaminate mine.jsonl --against aime24.jsonl --out data/mine
Each has its own --help; docs/data.md goes through the paper's data step by step.
"""
_PREPARE = f"""layouts:
{_LAYOUT_LIST}

A source is LAYOUT=WHERE. WHERE is a file (.jsonl, .json, .csv, .parquet, .arrow), a quoted pattern with *, or a folder
as `hf download` leaves it, with @CONFIGURATION/SPLIT when it has several.

examples:
  fetch a dataset:
    hf download --repo-type dataset open-r1/DAPO-Math-17k-Processed --local-dir DAPO-Math-17k-Processed
  the candidates of the paper's RL data (§4.2), cleaned against its benchmarks:
    rstar2 data prepare dapo=DAPO-Math-17k-Processed@en openmathreasoning=OpenMathReasoning@cot \\
      project-euler=project-euler@full --against math500.jsonl --against aime24.jsonl --out data/rl
  the same after 16 answers were sampled to each candidate; files that were read before are not read again:
    rstar2 data prepare (as above) --sampled answers.jsonl --out data/rl
  demonstrations for the cold start (§4.1):
    rstar2 data prepare toolace=ToolACE glaive=glaive-function-calling-v2 'tulu3=tulu/data/*.parquet' --out data/sft
  a benchmark, for `evaluate.benchmarks` of a manifest:
    rstar2 data prepare math500=math500.jsonl --out data/benchmarks
    rstar2 data prepare gpqa=gpqa_diamond.csv --out data/benchmarks
"""
_DECONTAMINATE = """At least one --against is needed. Rows are kept as they are otherwise.

example:
  rstar2 data decontaminate mine.jsonl --against aime24.jsonl --against math500.jsonl --out data/mine
"""


def add_arguments(data: argparse.ArgumentParser) -> None:
    """The subcommands and their options."""
    data.epilog = EPILOG
    data.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = data.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    compared = argparse.ArgumentParser(add_help=False)
    compared.add_argument(
        "--against", type=Path, action="append", default=[], metavar="FILE",
        help="a benchmark: rows that share eight words in a row with it are removed (paper §5.1); may be repeated",
    )  # fmt: skip
    compared.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="the result goes into FOLDER/HASH, with a report.json"
    )

    ready = verbs.add_parser(
        "prepare", parents=[compared], help="convert, clean and compare public datasets; report what each rule removed",
        epilog=_PREPARE, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    ready.add_argument("sources", nargs="+", metavar="LAYOUT=WHERE", help="all problems, or all conversations")
    ready.add_argument(
        "--sampled", type=Path, metavar="FILE", help="rows {id, answers}: what a model answered, several times, to each"
    )
    ready.add_argument(
        "--agree",
        type=int,
        default=_DEFAULT.agree,
        help="sampled answers that must be the label (default: %(default)s)",
    )
    ready.add_argument(
        "--max-digits", type=int, default=_DEFAULT.max_digits, help="longest answer that is kept (default: %(default)s)"
    )
    ready.add_argument(
        "--similarity", type=float, default=_DEFAULT.similarity,
        help="Jaccard similarity of word pairs from which problems are near duplicates (default: %(default)s)",
    )  # fmt: skip

    look = verbs.add_parser(
        "inspect", help="columns, sizes, and the first usable row as a stage would read it; writes nothing",
        epilog=f"layouts:\n{_LAYOUT_LIST}", formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    look.add_argument("source", metavar="[LAYOUT=]WHERE", help="as for prepare; without a layout, as the rows are")
    look.add_argument("--rows", type=count, metavar="N", help="look at the first N rows (default: all)")

    clean = verbs.add_parser(
        "decontaminate", parents=[compared], help="remove from problems or conversations what overlaps with benchmarks",
        epilog=_DECONTAMINATE, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    clean.add_argument("files", nargs="+", metavar="WHERE", help="rows with a problem, a question or messages")


def main(given: argparse.Namespace) -> int:
    """Runs one of them; returns the exit code."""
    verb = {"prepare": _prepare, "inspect": _inspect, "decontaminate": _decontaminate}[given.verb]
    try:
        verb(given)
    except (DataError, OSError) as error:
        print(f"rstar2 data {given.verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the files that it has read", file=sys.stderr)
        return 130
    return 0


def _prepare(given: argparse.Namespace) -> None:
    from rstar2_train.data.prepare.pipeline import DatasetSource, prepare

    sources = [DatasetSource(*_layout_and_files(named)) for named in given.sources]
    settings = PrepareSettings(max_digits=given.max_digits, similarity=given.similarity, agree=given.agree)
    with _progress() as watch:
        prepared = prepare(
            sources, out=given.out, against=given.against, sampled=given.sampled, settings=settings, watch=watch
        )
    _show(prepared)


def _decontaminate(given: argparse.Namespace) -> None:
    if not given.against:
        raise DataError("--against is missing: name at least one benchmark")
    from rstar2_train.data.prepare.files import data_files
    from rstar2_train.data.prepare.pipeline import decontaminate

    files = [file for named in given.files for file in data_files(named)]
    with _progress() as watch:
        prepared = decontaminate(files, out=given.out, against=given.against, watch=watch)
    _show(prepared)


def _inspect(given: argparse.Namespace) -> None:
    from rstar2_train.data.prepare.files import data_files
    from rstar2_train.data.prepare.inspect import inspect_rows

    named = given.source.partition("=")[0] in LAYOUTS
    layout, files = _layout_and_files(given.source) if named else (None, tuple(data_files(given.source)))
    found = inspect_rows(files, layout=layout, most=given.rows)
    console = _console()
    table = Table("column", "type", "rows", "first value")
    for name, column in found.columns.items():
        types = ", ".join(column.types)
        table.add_row(escape(name), types, f"{column.types.total():,}", escape(column.example))
    console.print(table)
    for line in _described(found, layout):
        print(line)


def _described(found: InspectionReport, layout: DatasetLayout | None) -> Iterator[str]:
    yield f"{found.rows:,} rows, {found.usable:,} usable" + (f" as {layout.holds}" if layout else "")
    for rule, rows in found.removed.items():
        yield f"  {rows:,} removed: {rule}"
    if not found.usable:
        yield "neither problems {problem, answer} nor conversations {messages}: name a layout, LAYOUT=WHERE"
        return
    shortest, median, longest = min(found.words), statistics.median(found.words), max(found.words)
    yield f"words a row: {shortest:,} to {longest:,}, median {median:,.0f}"
    if found.turns:
        yield "messages: " + ", ".join(f"{count:,} {role}" for role, count in found.turns.items())
    else:
        yield f"answers: {found.integers:,} whole numbers, {found.usable - found.integers:,} others"
    yield "the first usable row, as a stage would read it:"
    yield as_json(found.first, indent=1)


def _layout_and_files(named: str) -> tuple[DatasetLayout, tuple[Path, ...]]:
    from rstar2_train.data.prepare.files import data_files

    name, equals, where = named.partition("=")
    if not equals or name not in LAYOUTS:
        raise DataError(f"{named}: a source is LAYOUT=WHERE, and LAYOUT one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name], tuple(data_files(where))


def _show(prepared: PreparedDataset) -> None:
    """What was removed and what is left, and where it is."""
    from rstar2_train.data.prepare.pipeline import REPORT

    report, console = prepared.report, _console()
    sources = [name for name in report["read"] if name != "all"]
    shown = ["all", *sources] if len(sources) > 1 else ["all"]
    table = Table(Column(min_width=max(map(len, RULES))), *(escape(name) for name in shown))
    table.add_column("for example", no_wrap=True, overflow="ellipsis")
    rules = [(rule, entry["rows"], entry["examples"][0]) for rule, entry in report["removed"].items()]
    for title, counts, example in (("read", report["read"], None), *rules, ("kept", report["kept"], None)):
        why = escape(f"{example['at']}: {example['why']}") if example else ""
        table.add_row(title, *(f"{counts.get(name, 0):,}" for name in shown), why)
    console.print(table)
    print(f"{prepared.file}{' (was there already, from the same input)' if prepared.reused else ''}")
    print(prepared.file.with_name(REPORT))


@contextmanager
def _progress() -> Iterator[Watch]:
    """What is being done now, on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def watch(what: str, done: int, total: int | None) -> None:
            progress.update(task, description=escape(what), completed=done, total=total)

        yield watch


def _console() -> Console:
    """The terminal, or for a file or a pipe a page that is wide enough for every table."""
    return Console() if sys.stdout.isatty() else Console(width=140)
