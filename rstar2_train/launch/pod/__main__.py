"""`python -m rstar2_train.launch.pod prepare|launch|report`: what a job's pods run, in the order in which they run.

Exit codes are those of a driver (api/contracts.py): 78 when another try cannot help, 76 when it may.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from pydantic import ValidationError

from rstar2_train.api.contracts import ExitCode
from rstar2_train.launch.pod.progress_config_map import ACCOUNT
from rstar2_train.launch.pod.progress_mirror import TERMINATION_LOG, write_termination_message


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m rstar2_train.launch.pod", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--job", type=Path, required=True, help="the located job file; source.json lies beside it")
    common.add_argument("--state", type=Path, required=True, help="the job's state folder")
    common.add_argument("--progress", default="", help="ConfigMap to tell; default: nobody")
    common.add_argument("--account", type=Path, default=ACCOUNT, help="folder of the service account's token and CA")
    common.add_argument("--termination-log", type=Path, default=TERMINATION_LOG, help="file for the last words")

    commands.add_parser("prepare", parents=[common], help="make or fetch data and model that are not there")

    launch = commands.add_parser("launch", parents=[common], help="run a pod of a stage attempt")
    launch.add_argument("--stage", required=True, help="name of the stage")
    launch.add_argument("--attempt", type=int, required=True, help="number of the attempt, 1 the first")
    launch.add_argument("--nodes", type=int, required=True, help="pods of the attempt")
    launch.add_argument("--subdomain", required=True, help="the headless Service that names the pods")
    launch.add_argument("--engines", default="", help="HOST:PORT of the engines' headless Service")
    launch.add_argument("--judge", default="", help="base URL of the judge API")
    launch.add_argument("--ray-port", type=int, default=6379, help="port of Ray's head (default: %(default)s)")
    launch.add_argument("--head", default="", help="host of index 0; default: from HOSTNAME and --subdomain")

    report = commands.add_parser("report", parents=[common], help="write the report and close the MLflow run")
    report.add_argument("--ending", choices=["completed", "failed"], required=True, help="how the job ended")
    return top


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    given = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return _run(given)
    except (OSError, ValueError, KeyError) as error:
        words = str(error) if not isinstance(error, ValidationError) else f"{given.job} is no valid job file: {error}"
        print(f"{given.command}: {words}", file=sys.stderr)
        write_termination_message(words, given.termination_log)
        return ExitCode.RETRYABLE if isinstance(error, OSError) else ExitCode.CONFIGURATION


def _run(given: argparse.Namespace) -> int:
    """Each command imports its own half."""
    if given.command == "prepare":
        from rstar2_train.launch.pod.prepare import prepare

        log = given.termination_log
        return prepare(given.job, given.state, progress=given.progress, account=given.account, termination_log=log)
    if given.command == "report":
        from rstar2_train.launch.pod.report import report

        return report(given.job, given.state, ending=given.ending)
    from rstar2_train.launch.pod.attempt import AttemptOptions, launch

    told = AttemptOptions(
        job_file=given.job,
        state=given.state,
        stage=given.stage,
        attempt=given.attempt,
        nodes=given.nodes,
        subdomain=given.subdomain,
        engines=given.engines,
        judge=given.judge,
        progress=given.progress,
        ray_port=given.ray_port,
        head=given.head,
        account=given.account,
        termination_log=given.termination_log,
    )
    return asyncio.run(launch(told, index=int(os.environ.get("JOB_COMPLETION_INDEX", "0"))))


if __name__ == "__main__":
    sys.exit(main())
