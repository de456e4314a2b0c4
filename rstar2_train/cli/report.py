"""`rstar2 report`: print the table of a job's stages."""

from __future__ import annotations

import argparse
import json

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, table_console, unknown_job

NAME = "report"


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = add_command(commands, NAME, main, help="print the stages of a job and their held-out results")
    parser.add_argument("job", metavar="JOB", help="name of the job, as in its manifest")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Print the report; return the exit code."""
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.cli.report_tables import ReportTables
    from rstar2_train.evaluation.job_report import build_report

    state = JobState(args.state / args.job)
    if not state.job_file.exists():
        return unknown_job(NAME, state.root)
    report = build_report(state.root, state.job(), seconds=state.seconds())
    if args.json:
        print(json.dumps(report.model_dump(mode="json"), indent=1))
        return 0
    table_console().print(ReportTables(report))
    return 0
