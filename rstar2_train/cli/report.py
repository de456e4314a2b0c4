"""`rstar2 report`: print the table of a job's stages, from its folder or from the bucket of its manifest."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail, table_console, unknown_job

if TYPE_CHECKING:
    from rstar2_train.api.state_dir import JobState

NAME = "report"
EPILOG = """examples:
  rstar2 report tiny             also while the job runs
  rstar2 report tiny --json      for scripts
  rstar2 report my-job.yaml      of a job in a bucket

pass@1 is measured on spec.validation, before and after each training stage."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    text = "print the stages of a job and their held-out results"
    parser = add_command(commands, NAME, main, help=text, epilog=EPILOG)
    help = "name of the job; or its manifest (.yaml, .json), whose bucket (spec.storage.url) then has the newest state"
    parser.add_argument("job", metavar="JOB", help=help)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Print the report; return the exit code."""
    from rstar2_train.api.loader import MANIFESTS
    from rstar2_train.api.state_dir import JobState

    if args.job.endswith(MANIFESTS):
        return _report_of_bucket(Path(args.job), as_json=args.json)
    state = JobState(args.state / args.job)
    if not state.job_file.exists():
        return unknown_job(NAME, state.root)
    return _print_report(state, as_json=args.json)


def _report_of_bucket(manifest: Path, *, as_json: bool) -> int:
    """Download the records of a job, which are small, and print the report. No state folder changes."""
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.launch.local.preflight import PreflightError, read_job
    from rstar2_train.launch.local.upload import fetch_records

    with TemporaryDirectory(prefix="rstar2-report-") as folder:
        try:
            fetch_records(read_job(manifest)[0], Path(folder))
        except PreflightError as error:
            return fail(NAME, str(error))
        return _print_report(JobState(Path(folder)), as_json=as_json)


def _print_report(state: JobState, *, as_json: bool) -> int:
    from rstar2_train.cli.report_tables import ReportTables
    from rstar2_train.evaluation.job_report import read_report

    report = read_report(state)
    if as_json:
        print(json.dumps(report.model_dump(mode="json"), indent=1))
    else:
        table_console().print(ReportTables(report))
    return 0
