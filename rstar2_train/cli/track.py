"""`rstar2 track`: send a job's unsent tracking events to MLflow."""

from __future__ import annotations

import argparse

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail, unknown_job
from rstar2_train.utils.options import seconds

NAME = "track"
EPILOG = """example:
  rstar2 track tiny              after a run during which MLflow was unreachable

The server is spec.tracking.mlflow.uri of the job, else the file mlflow.db in its folder. The exit code is 1 if metrics
are still unsent; run the command again."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "send unsent metrics and artifacts of a job to MLflow"
    parser = add_command(commands, NAME, main, help=help, epilog=EPILOG)
    parser.add_argument("job", metavar="JOB", help="name of the job, as in its manifest")
    parser.add_argument(
        "--timeout", type=seconds, default=120, metavar="SECONDS", help="time limit in seconds (default: %(default)s)"
    )
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Send the journal; return the exit code."""
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.tracking.shipper import ship
    from rstar2_train.tracking.tracker import read_target

    state = JobState(args.state / args.job)
    if not state.job_file.exists():
        return unknown_job(NAME, state.root)
    try:
        read_target(state.root)
    except FileNotFoundError:
        return fail(NAME, f"{state.root}: the job has no metrics yet. Run it first.")
    shipped = ship(state.root, timeout=args.timeout)
    if shipped.complete:
        print(shipped.rejection_message or "MLflow has everything.")
        return 0
    cause = shipped.error or f"{args.timeout:g} s were not enough; run it again, or pass a longer --timeout"
    return fail(NAME, f"{shipped.pending} bytes of the journal are unsent: {cause}")
