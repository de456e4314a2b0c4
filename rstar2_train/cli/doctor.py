"""`rstar2 doctor`: the equipment of this machine or of a cluster, each line with the remedy."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail, table_console

if TYPE_CHECKING:
    from rstar2_train.launch.doctor.findings import Finding

NAME = "doctor"
DESCRIPTION = "Show what this machine has and lacks for jobs of `rstar2 run`, each line with the remedy."
EPILOG = """examples:
  rstar2 doctor               this machine
  rstar2 doctor --cluster     the cluster of kubectl's current context
  rstar2 doctor --json        the same for scripts
  rstar2 doctor --bucket s3://models/team     the operations of a bucket that publications need

The exit code is 1 if something is missing without which no job runs, else 0. A note concerns some jobs only."""
MARKS = {"ok": "[green]ok[/]", "missing": "[red]missing[/]", "note": "[yellow]note[/]"}


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "show what this machine or a cluster has and lacks, with remedies"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    places = parser.add_mutually_exclusive_group()
    places.add_argument("--cluster", action="store_true", help="the cluster of kubectl's current context instead")
    places.add_argument(
        "--bucket",
        metavar="URL",
        help="a bucket instead: s3://BUCKET/PREFIX, gs:// or az://; small objects are written",
    )
    parser.add_argument("--endpoint-url", metavar="URL", help="with --bucket: address of an S3-compatible server")
    parser.add_argument("--region", help="with --bucket: region of S3")
    parser.add_argument("--virtual-host", action="store_true", help="with --bucket: the bucket is in the host name")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if something is missing."""
    try:
        findings = _examine(args)
    except (KubectlUnusable, ValueError) as error:
        return fail(NAME, str(error))
    if args.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    else:
        print_findings(findings)
    return int(any(finding.state == "missing" for finding in findings))


def _examine(args: argparse.Namespace) -> list[Finding]:
    if args.bucket is not None:
        return _bucket(args)
    if args.endpoint_url is not None or args.region is not None or args.virtual_host:
        raise ValueError("--endpoint-url, --region and --virtual-host need --bucket s3://BUCKET/PREFIX")
    return _cluster() if args.cluster else _machine(args.state)


def print_findings(findings: list[Finding]) -> None:
    """Print a table, and a line that sums it up."""
    headings = ("", "", "detail", "remedy")
    table = Table(*(Column(heading, overflow="fold") for heading in headings), box=None, pad_edge=False)
    for finding in findings:
        table.add_row(MARKS[finding.state], finding.subject, escape(finding.detail), escape(finding.remedy), style=None)
    console = table_console()
    console.print(table)
    missing = [finding.subject for finding in findings if finding.state == "missing"]
    console.print(f"\nmissing: {', '.join(missing)}" if missing else "\nnothing is missing")


class KubectlUnusable(Exception):
    """kubectl is missing, or reaches no cluster."""


def _machine(state: Path) -> list[Finding]:
    from rstar2_train.launch.doctor.machine import examine

    return examine(state)


def _bucket(args: argparse.Namespace) -> list[Finding]:
    """Raise ValueError for an invalid URL or address."""
    from rstar2_train.api.base import ENDPOINT, LABEL
    from rstar2_train.api.sources import split_bucket
    from rstar2_train.api.storage import StorageSpec
    from rstar2_train.launch.doctor.bucket import examine

    try:
        source = split_bucket(args.bucket)
    except ValueError as error:
        raise ValueError(f"--bucket {args.bucket}: {error}") from error
    if args.endpoint_url is not None and not re.fullmatch(ENDPOINT, args.endpoint_url):
        raise ValueError(f"--endpoint-url {args.endpoint_url}: must be an address such as https://s3.example.org:9000")
    if args.region is not None and not re.fullmatch(LABEL, args.region):
        raise ValueError(f"--region {args.region}: must be a name such as eu-central-1")
    settings = {"endpointUrl": args.endpoint_url, "region": args.region}
    settings["addressing"] = "VirtualHost" if args.virtual_host else "Path"
    return examine(source, StorageSpec.model_validate(settings))


def _cluster() -> list[Finding]:
    from rstar2_train.cli.kubectl_plugin import Kubectl, KubectlFailed
    from rstar2_train.launch.doctor.cluster import examine

    kubectl = Kubectl(["--request-timeout=10s"])
    try:
        kubectl.text("version")
    except KubectlFailed as error:
        raise KubectlUnusable(str(error)) from error

    def get(kind: str) -> list[dict[str, Any]] | None:
        try:
            objects: list[dict[str, Any]] = kubectl.get(kind, "-A")
        except KubectlFailed:
            return None
        return objects

    return examine(get)
