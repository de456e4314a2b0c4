"""`rstar2 validate`: check a manifest and print all its errors and warnings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rstar2_train.cli.common import Subparsers, add_command, fail

NAME = "validate"


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    parser = add_command(commands, NAME, main, help="check a manifest and print all its errors")
    parser.add_argument("file", type=Path, metavar="MANIFEST", help="AgenticRLJob manifest (YAML)")


def main(args: argparse.Namespace) -> int:
    """Validate the manifest; return the exit code."""
    from rstar2_train.api.loader import ManifestError, read_manifest
    from rstar2_train.api.validation import check

    try:
        job, issues = check(read_manifest(args.file))
    except ManifestError as error:
        return fail(NAME, str(error))
    for issue in issues:
        print(issue, file=sys.stdout if issue.warning else sys.stderr)
    if job is None:
        errors = sum(not issue.warning for issue in issues)
        return fail(NAME, f"{args.file}: {errors} error{'s' if errors > 1 else ''}")
    stages = [stage.name for stage in job.spec.stages]
    print(f"{args.file}: valid, {len(stages)} stage{'s' if len(stages) > 1 else ''}: {', '.join(stages)}")
    return 0
