"""`rstar2 data prepare|inspect|decontaminate`: prepares public datasets as data files of a manifest.

Arguments and progress. The work is in `data/prepare/pipeline.py` and `data/prepare/inspect.py`, the output in
`data/prepare/render.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.records import DatasetLayout
from rstar2_train.data.readers import DataError
from rstar2_train.utils.options import count

if TYPE_CHECKING:
    from rstar2_train.data.prepare.pipeline import PreparedDataset, ProgressCallback

_DEFAULT = PrepareSettings()
_LAYOUT_LIST = "\n".join(f"  {name:18} {layout.kind}: {layout.dataset}" for name, layout in LAYOUTS.items())
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
    with _progress() as on_progress:
        prepared = prepare(
            sources,
            out=given.out,
            against=given.against,
            sampled=given.sampled,
            settings=settings,
            on_progress=on_progress,
        )
    _print(prepared)


def _decontaminate(given: argparse.Namespace) -> None:
    if not given.against:
        raise DataError("--against is missing; name at least one benchmark file")
    from rstar2_train.data.prepare.files import find_data_files
    from rstar2_train.data.prepare.pipeline import decontaminate

    files = [file for location in given.files for file in find_data_files(location)]
    with _progress() as on_progress:
        prepared = decontaminate(files, out=given.out, against=given.against, on_progress=on_progress)
    _print(prepared)


def _inspect(given: argparse.Namespace) -> None:
    from rstar2_train.data.prepare.files import find_data_files
    from rstar2_train.data.prepare.inspect import inspect_rows
    from rstar2_train.data.prepare.render import column_table, inspection_lines

    has_layout = given.source.partition("=")[0] in LAYOUTS
    layout, files = _layout_and_files(given.source) if has_layout else (None, tuple(find_data_files(given.source)))
    report = inspect_rows(files, layout=layout, limit=given.rows)
    _console().print(column_table(report))
    for line in inspection_lines(report, layout):
        print(line)


def _layout_and_files(source: str) -> tuple[DatasetLayout, tuple[Path, ...]]:
    from rstar2_train.data.prepare.files import find_data_files

    name, equals, location = source.partition("=")
    if not equals or name not in LAYOUTS:
        raise DataError(f"{source}: a source is LAYOUT=WHERE; the layouts are {', '.join(LAYOUTS)}")
    return LAYOUTS[name], tuple(find_data_files(location))


def _print(prepared: PreparedDataset) -> None:
    """Print the table of removals and the paths of the files."""
    from rstar2_train.data.prepare.pipeline import REPORT
    from rstar2_train.data.prepare.render import removal_table

    _console().print(removal_table(prepared.report))
    print(f"{prepared.file}{' (existing result of the same input)' if prepared.reused else ''}")
    print(prepared.file.with_name(REPORT))


@contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """A progress bar with the current activity, on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def on_progress(activity: str, done: int, total: int | None) -> None:
            progress.update(task, description=escape(activity), completed=done, total=total)

        yield on_progress


def _console() -> Console:
    """Return a console for the terminal; for a file or a pipe, one that is wide enough for every table."""
    return Console() if sys.stdout.isatty() else Console(width=140)
