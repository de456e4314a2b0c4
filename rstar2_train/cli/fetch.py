"""`rstar2 fetch`: download the newest state of a job from the bucket of its manifest, for the commands that read it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail
from rstar2_train.utils.options import user_path
from rstar2_train.utils.text import reason

if TYPE_CHECKING:
    from rstar2_train.api.job import AgenticRLJob
    from rstar2_train.api.state_dir import JobState

NAME = "fetch"
DESCRIPTION = """Download the newest state of a job from its bucket (spec.storage.url) into a folder. The job may run
meanwhile, on another machine. The commands that read a job (report, analyse, verify, serve, chat, eval, export) take
the manifest too, and download its newest state. `rstar2 view` reads the folder."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "download the state of a job from its bucket"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION)
    parser.add_argument("file", type=user_path, metavar="MANIFEST", help="AgenticRLJob manifest with spec.storage.url")
    parser.add_argument(
        "--no-checkpoints", action="store_true", help="leave out checkpoints, which only a run needs to continue"
    )
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Download the state; return the exit code."""
    from rstar2_train.launch.local.upload import fetch_state

    return with_state(args, NAME, partial(fetch_state, checkpoints=not args.no_checkpoints))


def with_state(args: argparse.Namespace, name: str, action: Callable[[AgenticRLJob, JobState], str]) -> int:
    """Run an action on the state folder of a manifest's job, print its message, and return the exit code."""
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.launch.local.preflight import PreflightError, locked, read_job

    try:
        job, _ = read_job(args.file)
        state = JobState((args.state / job.metadata.name).resolve())
        with locked(state):
            print(f"{state.root}: {action(job, state)}")
    except PreflightError as error:
        return fail(name, str(error))
    except OSError as error:
        return fail(name, f"{error.filename or args.state}: {reason(error)}")
    return 0
