"""`rstar2 publish`: publish the state of a job, such as that of a claim, in the bucket of its manifest."""

from __future__ import annotations

import argparse

from rstar2_train.cli.common import Subparsers, add_command, add_state_option
from rstar2_train.cli.fetch import with_state
from rstar2_train.utils.options import user_path

NAME = "publish"
DESCRIPTION = """Publish the state folder of a job in its empty bucket (spec.storage.url). The job must not run
meanwhile. Then it continues from the bucket, in a cluster or by `rstar2 run` on any machine."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "publish the state of a job in its bucket"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION)
    parser.add_argument("file", type=user_path, metavar="MANIFEST", help="AgenticRLJob manifest with spec.storage.url")
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Publish the state; return the exit code."""
    from rstar2_train.launch.local.upload import publish_state

    return with_state(args, NAME, publish_state)
