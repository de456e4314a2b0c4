"""`rstar2 init`: make a working folder from a template. The files are in `data/templates`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rstar2_train.cli.common import Subparsers, add_command, fail
from rstar2_train.data.task_templates import TEMPLATES, FolderInUse, write_template
from rstar2_train.utils.disk import DiskRefused
from rstar2_train.utils.options import user_path
from rstar2_train.utils.text import reason

NAME = "init"
DESCRIPTION = """Make a working folder for a task of your own: manifest, rows, tool, checker, a script for a check, and
a README."""
EPILOG = """examples:
  rstar2 init --template sql shop && cd shop && rstar2 env check job.yaml --script script.txt
  rstar2 init --template maths                 in this folder, which must be empty"""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "make a working folder: manifest, rows, tool, checker"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--template", required=True, choices=list(TEMPLATES), help="kind of task")
    parser.add_argument(
        "folder", nargs="?", type=user_path, default=Path(), metavar="FOLDER", help="default: this folder"
    )


def main(args: argparse.Namespace) -> int:
    """Write the folder; return the exit code."""
    try:
        files = write_template(args.template, args.folder)
    except (FolderInUse, DiskRefused) as error:
        return fail(NAME, str(error))
    except OSError as error:
        return fail(NAME, f"{error.filename or args.folder}: {reason(error)}. Name a new or empty folder.")
    print(f"{args.folder}: {', '.join(files)}")
    start = "python server.py & " if "server.py" in files else ""
    print(f"Next: cd {args.folder}; {start}rstar2 env check job.yaml --script script.txt")
    return 0
