"""`rstar2 run`: run the curriculum of a manifest on this machine. The work is in `launch/local/run.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail, table_console
from rstar2_train.utils.options import user_path
from rstar2_train.utils.text import reason

NAME = "run"
UNUSABLE_FOLDER = (PermissionError, NotADirectoryError, FileNotFoundError, FileExistsError)
DESCRIPTION = """Run the curriculum of a manifest on this machine: judge, engines, trainer and tracking as child
processes. Before anything starts, the manifest, the machine and every data row are checked."""
EPILOG = """Ctrl-C suspends after a checkpoint; a second Ctrl-C stops without waiting for it. Run the same command again
to resume, also after a crash or a power failure.

Exit code: 0 completed, 75 suspended, 1 failed."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "run a manifest on this machine, or resume a run"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("file", type=user_path, metavar="MANIFEST", help="AgenticRLJob manifest (YAML)")
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Run the manifest; return the exit code."""
    return run_manifest(args.file, state_root=args.state, name=NAME)


def run_manifest(file: Path, *, state_root: Path, name: str) -> int:
    """Run a manifest; return the exit code. `name`: the subcommand, for errors."""
    from rstar2_train.cli.run_view import TerminalRunView
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.launch.local.run import add_tools_to_path, run

    add_tools_to_path()
    try:
        return run(file, state_root=state_root, view=TerminalRunView(table_console()))
    except PreflightError as error:
        return fail(name, str(error))
    except OSError as error:
        advice = ". Pass a folder that you may write with --state" if isinstance(error, UNUSABLE_FOLDER) else ""
        return fail(name, f"{error.filename or state_root}: {reason(error)}{advice}")
