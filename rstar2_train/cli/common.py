"""Helpers of the subcommands: they add a parser, print errors and tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console

from rstar2_train.utils.options import user_path

if TYPE_CHECKING:
    from rich.progress import Progress

    from rstar2_train.api.state_dir import JobState

PAGE_WIDTH = 120
"""Columns of a table that is written to a file or a pipe."""
INTERRUPTED = 130
"""Exit code of a command that Ctrl-C stopped."""
MAX_ANSWERS = 10
"""Maximum unclear known answers per file that are printed."""


Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Type of the object that `ArgumentParser.add_subparsers` returns."""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps the paragraphs of descriptions and epilogs, except those with indented lines, such as examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            paragraph if "\n " in paragraph else super(HelpFormatter, self)._fill_text(paragraph, width, indent)
            for paragraph in paragraphs
        )


def add_command(
    commands: Subparsers,
    name: str,
    main: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str = "",
    epilog: str = "",
    parents: list[argparse.ArgumentParser] | None = None,
) -> argparse.ArgumentParser:
    """Add a subcommand whose namespace has `main`. `help`: one line; `description`: default `help`."""
    parser = commands.add_parser(
        name,
        help=help,
        description=description or f"{help[0].upper()}{help[1:]}.",
        epilog=epilog,
        formatter_class=HelpFormatter,
        parents=parents or [],
        allow_abbrev=False,  # a new option would change the meaning of a shortened one
    )
    parser.set_defaults(main=main)
    return parser


def add_state_option(parser: argparse.ArgumentParser) -> None:
    """Add --state, which all subcommands on jobs have."""
    parser.add_argument(
        "--state",
        type=user_path,
        default=Path(".rstar2"),
        metavar="FOLDER",
        help="folder of the state of all jobs (default: %(default)s)",
    )


def add_base_option(parser: argparse.ArgumentParser) -> None:
    """Add --base, which all subcommands have that take an adapter in place of a model."""
    parser.add_argument(
        "--base",
        type=user_path,
        metavar="FOLDER",
        help="base of an adapter (default: the folder that its adapter_config.json names)",
    )


def fail(name: str, message: str) -> int:
    """Print an error of the subcommand `name` to stderr; return exit code 1."""
    print(f"rstar2 {name}: {message}", file=sys.stderr)
    return 1


def job_state(job: str, jobs: Path) -> JobState:
    """Return the state folder of a job by its name, or by its manifest with storage.url after a download.

    `jobs`: folder of the state of all jobs. Raises PreflightError.
    """
    from rstar2_train.api.loader import MANIFESTS
    from rstar2_train.api.state_dir import JobState

    if not job.endswith(MANIFESTS):
        return JobState(jobs / job)
    from rstar2_train.launch.local.upload import fetched_state

    return fetched_state(Path(job), jobs=jobs)


def unknown_job(name: str, folder: Path) -> int:
    """Print that a job has no state folder; return exit code 1."""
    from rstar2_train.api.loader import MANIFESTS

    if folder.name.endswith(MANIFESTS):
        return fail(name, f"{folder.name}: pass the name of the job (metadata.name) in place of its manifest.")
    return fail(name, f"{folder}: no such job. Run it first, or pass the folder of all jobs with --state.")


def table_console(*, width: int = PAGE_WIDTH) -> Console:
    """Return a console for tables on stdout. `width`: columns if stdout is not a terminal."""
    return Console() if sys.stdout.isatty() else Console(width=width)


def progress_bar() -> Progress:
    """Return a progress bar with a count and the remaining time, on stderr; it disappears at the end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def warn_of_answers(faults: Sequence[str], prefix: str = "warning: ") -> Iterator[str]:
    """Yield a line per unclear known answer: the first MAX_ANSWERS, then their number."""
    for fault in faults[:MAX_ANSWERS]:
        yield f"{prefix}{fault}"
    if len(faults) > MAX_ANSWERS:
        yield f"{prefix}{len(faults):,} unclear answers in total, the first {MAX_ANSWERS} are above"
