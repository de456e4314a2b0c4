"""`rstar2 data prepare|inspect|decontaminate`: convert public datasets into the files that a manifest names.

The work is in data/prepare/pipeline.py and data/prepare/inspect.py.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rstar2_train.cli.common import INTERRUPTED, Subparsers, add_command, fail, table_console
from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.layouts import LAYOUTS
from rstar2_train.data.prepare.records import DatasetLayout
from rstar2_train.data.readers import DataError
from rstar2_train.utils.disk import DiskRefused, named_disk
from rstar2_train.utils.options import count, user_path
from rstar2_train.utils.text import printable, reason

if TYPE_CHECKING:
    from rstar2_train.data.prepare.pipeline import PreparedDataset, ProgressCallback

NAME = "data"
WIDTH = 140
"""Columns of a table in a file or a pipe."""
_DEFAULT = PrepareSettings()
_LAYOUT_LIST = "\n".join(f"  {name:18} {layout.kind}: {layout.dataset}" for name, layout in LAYOUTS.items())
DESCRIPTION = "Convert public datasets into the files that a manifest names, inspect them, and decontaminate them."
EPILOG = """examples:
  rstar2 data inspect math500=math500.jsonl        show the columns of a file and its usable rows
  rstar2 data inspect demonstrations.jsonl --model base --row 3
                                                   show a demonstration as tokens, the trained ones marked
  rstar2 data prepare dapo=DAPO-Math-17k-Processed@en --against math500.jsonl --out data/rl
  rstar2 data decontaminate mine.jsonl --against aime24.jsonl --out data/mine

Each subcommand has its own --help. docs/data.md describes the paper's data step by step."""
_PREPARE = f"""layouts:
{_LAYOUT_LIST}

A source is LAYOUT=PATH. PATH is a file (.jsonl, .json, .csv, .parquet, .arrow), a quoted pattern with *, or a folder
that `hf download` created, with @CONFIGURATION/SPLIT if it has several.

examples:
  download a dataset:
    hf download --repo-type dataset open-r1/DAPO-Math-17k-Processed --local-dir DAPO-Math-17k-Processed
  the candidates of the paper's RL data (§4.2), cleaned against its benchmarks:
    rstar2 data prepare dapo=DAPO-Math-17k-Processed@en openmathreasoning=OpenMathReasoning@cot \\
      project-euler=project-euler@full --against math500.jsonl --against aime24.jsonl --out data/rl
  the same with 16 sampled answers per candidate; files that were read before are not read again:
    rstar2 data prepare (as above) --sampled answers.jsonl --out data/rl
  demonstrations for the cold start (§4.1):
    rstar2 data prepare toolace=ToolACE glaive=glaive-function-calling-v2 'tulu3=tulu/data/*.parquet' --out data/sft
  a benchmark, for `evaluate.benchmarks` of a manifest:
    rstar2 data prepare math500=math500.jsonl --out data/benchmarks
    rstar2 data prepare gpqa=gpqa_diamond.csv --out data/benchmarks
    rstar2 data prepare bfcl=bfcl_eval/data --out data/benchmarks
"""
_DECONTAMINATE = """At least one --against is required. Kept rows are not changed.

example:
  rstar2 data decontaminate mine.jsonl --against aime24.jsonl --against math500.jsonl --out data/mine
"""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand and its own subcommands."""
    help = "prepare, inspect and decontaminate training data"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument(
        "--against",
        type=user_path,
        action="append",
        default=[],
        metavar="FILE",
        help="benchmark; rows that share eight consecutive words with it are removed (paper §5.1); may be repeated",
    )
    output.add_argument(
        "--out", type=user_path, required=True, metavar="FOLDER", help="the result is FOLDER/HASH, with a report.json"
    )

    help = "convert, clean and compare public datasets; report what each rule removed"
    prepare = add_command(verbs, "prepare", main, help=help, epilog=_PREPARE, parents=[output])
    prepare.add_argument("sources", nargs="+", metavar="LAYOUT=PATH", help="only problems, or only conversations")
    prepare.add_argument(
        "--sampled", type=user_path, metavar="FILE", help="rows {id, answers}: several sampled answers per problem"
    )
    prepare.add_argument(
        "--agree",
        type=int,
        default=_DEFAULT.agree,
        metavar="N",
        help="minimum number of sampled answers that equal the label (default: %(default)s)",
    )
    prepare.add_argument(
        "--max-digits",
        type=int,
        default=_DEFAULT.max_digits,
        metavar="N",
        help="limit of an answer in digits (default: %(default)s)",
    )
    prepare.add_argument(
        "--similarity",
        type=float,
        default=_DEFAULT.similarity,
        metavar="S",
        help="Jaccard similarity of word pairs from which two problems are near duplicates (default: %(default)s)",
    )

    help = "show columns, sizes, and the first usable row as a stage reads it; write nothing"
    inspect = add_command(verbs, "inspect", main, help=help, epilog=f"layouts:\n{_LAYOUT_LIST}")
    inspect.add_argument(
        "source", metavar="[LAYOUT=]PATH", help="as for prepare; without a layout, rows are not converted"
    )
    inspect.add_argument("--rows", type=count, metavar="N", help="read only the first N rows (default: all)")
    inspect.add_argument(
        "--model",
        type=user_path,
        metavar="FOLDER",
        help="show a demonstration as tokens of this model, trained ones marked",
    )
    inspect.add_argument(
        "--row", type=count, metavar="N", help="with --model: the row of the files to show (default: 1)"
    )

    help = "remove problems or conversations that overlap with benchmarks"
    decontaminate = add_command(verbs, "decontaminate", main, help=help, epilog=_DECONTAMINATE, parents=[output])
    decontaminate.add_argument("files", nargs="+", metavar="PATH", help="rows with a problem, a question or messages")


def main(args: argparse.Namespace) -> int:
    """Run one of the subcommands; return the exit code."""
    verb = {"prepare": _prepare, "inspect": _inspect, "decontaminate": _decontaminate}[args.verb]
    name = f"{NAME} {args.verb}"
    try:
        verb(args)
    except (DataError, DiskRefused) as error:
        return fail(name, str(error))
    except OSError as error:
        advice = "Pass files that you may read, and with --out a folder that you may write."
        return fail(name, f"{error.filename}: {reason(error)}. {advice}" if error.filename else str(error))
    except KeyboardInterrupt:
        fail(name, "interrupted. Files that were read are cached; run the same command to resume.")
        return INTERRUPTED
    return 0


def _prepare(args: argparse.Namespace) -> None:
    from rstar2_train.data.prepare.pipeline import DatasetSource, prepare

    sources = [DatasetSource(*_layout_and_files(named)) for named in args.sources]
    settings = PrepareSettings(max_digits=args.max_digits, similarity=args.similarity, agree=args.agree)
    with named_disk(args.out), _progress() as on_progress:
        prepared = prepare(
            sources,
            out=args.out,
            against=args.against,
            sampled=args.sampled,
            settings=settings,
            on_progress=on_progress,
        )
    _print(prepared)


def _decontaminate(args: argparse.Namespace) -> None:
    if not args.against:
        raise DataError("--against is missing; name at least one benchmark file")
    from rstar2_train.data.prepare.files import find_data_files
    from rstar2_train.data.prepare.pipeline import decontaminate

    files = [file for location in args.files for file in find_data_files(location)]
    for path, number in Counter(file.resolve() for file in files).items():
        if number > 1:
            raise DataError(f"{path}: named twice, so that its rows would be written twice; name it once")
    with named_disk(args.out), _progress() as on_progress:
        prepared = decontaminate(files, out=args.out, against=args.against, on_progress=on_progress)
    _print(prepared)


def _inspect(args: argparse.Namespace) -> None:
    from rstar2_train.cli.data_tables import column_table, inspection_lines
    from rstar2_train.data.prepare.files import find_data_files
    from rstar2_train.data.prepare.inspect import inspect_rows

    has_layout = args.source.partition("=")[0] in LAYOUTS
    layout, files = _layout_and_files(args.source) if has_layout else (None, tuple(find_data_files(args.source)))
    if args.model is not None:
        from rstar2_train.cli.demonstration_view import print_demonstration

        print_demonstration(files, layout=layout, model=args.model, row=args.row or 1)
        return
    if args.row is not None:
        raise DataError("--row needs --model FOLDER; --rows limits the rows that are read")
    report = inspect_rows(files, layout=layout, limit=args.rows)
    table_console(width=WIDTH).print(column_table(report))
    for line in inspection_lines(report, layout):
        print(printable(line))


def _layout_and_files(source: str) -> tuple[DatasetLayout, tuple[Path, ...]]:
    from rstar2_train.data.prepare.files import find_data_files

    name, equals, location = source.partition("=")
    if not equals or name not in LAYOUTS:
        raise DataError(f"{source}: a source is LAYOUT=PATH; the layouts are {', '.join(LAYOUTS)}")
    files = tuple(filter(LAYOUTS[name].has_rows, find_data_files(location)))
    if not files:
        raise DataError(f"{location}: no file name matches the layout {name}")
    return LAYOUTS[name], files


def _print(prepared: PreparedDataset) -> None:
    """Print the table of removals and the paths of the files."""
    from rstar2_train.cli.data_tables import removal_table, unused_line
    from rstar2_train.data.prepare.pipeline import REPORT

    table_console(width=WIDTH).print(removal_table(prepared.report))
    print(unused_line(prepared.report["notUsed"]), end="")
    print(f"{prepared.file}{' (existing result of the same input)' if prepared.reused else ''}")
    print(prepared.file.with_name(REPORT))


@contextmanager
def _progress() -> Iterator[ProgressCallback]:
    """Yield a callback that shows the current activity and its progress in the terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def on_progress(activity: str, done: int, total: int | None) -> None:
            progress.update(task, description=escape(activity), completed=done, total=total)

        yield on_progress
