"""`rstar2 demo`: run the curriculum of examples/tiny.yaml, also outside a clone. `cli/run.py` runs it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rstar2_train import data
from rstar2_train.cli import run
from rstar2_train.cli.common import Subparsers, add_command, add_state_option

NAME = "demo"
MANIFEST = Path(data.__file__).with_name("demo.yaml")
"""In a clone a link to examples/tiny.yaml; an installed package has the file."""
DESCRIPTION = """Train a tiny model with random weights through its whole curriculum: it learns to call its tool, from
the reward alone. 11 to 16 minutes on two cores, without a GPU, an account or a download."""
EPILOG = """examples:
  rstar2 demo              run it; Ctrl-C suspends, the same command resumes
  rstar2 view tiny         follow it in a browser, in a second terminal

The job is called tiny, and its state is in .rstar2/tiny."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "train a tiny model through its whole curriculum, in minutes on two cores"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Run the demo; return the exit code."""
    return run.run_manifest(MANIFEST, state_root=args.state, name=NAME)
