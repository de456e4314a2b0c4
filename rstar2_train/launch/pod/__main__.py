"""`python -m rstar2_train.launch.pod prepare|launch|report`: the programs of a job's pods, in the order of their use.

Exit codes are those of an orchestrator (api/contracts.py): 78 if a retry cannot help, 76 if it may.
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
from rstar2_train.utils import ports


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m rstar2_train.launch.pod", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--job", type=Path, required=True, help="job file with paths; source.json is next to it")
    common.add_argument("--state", type=Path, required=True, help="the job's state folder")
    common.add_argument("--progress", default="", help="ConfigMap for progress and outcome (default: none)")
    # The job file has the URL. An image of an earlier version, which would lose the state, fails because of the option.
    common.add_argument("--bucket", action="store_true", help="the state is in the bucket of spec.storage.url")
    common.add_argument("--account", type=Path, default=ACCOUNT, help="folder of the service account's token and CA")
    common.add_argument("--termination-log", type=Path, default=TERMINATION_LOG, help="termination message file")

    commands.add_parser("prepare", parents=[common], help="create or download missing data and model")

    launch = commands.add_parser("launch", parents=[common], help="run a pod of a stage attempt")
    launch.add_argument("--stage", required=True, help="name of the stage")
    launch.add_argument("--attempt", type=int, required=True, help="number of the attempt, from 1")
    launch.add_argument("--nodes", type=int, required=True, help="number of pods of the attempt")
    launch.add_argument("--subdomain", required=True, help="headless Service that names the pods")
    launch.add_argument("--engines", default="", help="HOST:PORT of the engines' headless Service")
    launch.add_argument("--teacher", default="", help="base URL of the teacher's engines")
    launch.add_argument("--judge", default="", help="base URL of the judge API")
    launch.add_argument("--environment", default="", help="HOST:PORT of the headless Service of the environment")
    launch.add_argument("--agent-port", type=int, default=0, help="port for the pods of the agent; default: no pods")
    launch.add_argument("--ray-port", type=int, default=ports.RAY, help="port of Ray's head (default: %(default)s)")
    launch.add_argument("--head", default="", help="host of index 0; default: from HOSTNAME and --subdomain")

    report = commands.add_parser("report", parents=[common], help="write the report and close the MLflow run")
    report.add_argument("--ending", choices=["completed", "failed", "deleted"], required=True, help="result of the job")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    args, unknown = parser().parse_known_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # else one line per request to the Hub
    try:
        if unknown:
            raise ValueError(
                f"this image does not know the options {' '.join(unknown)}, because the operator is newer. Set "
                "spec.trainer.image to the operator's version"
            )
        return _run(args)
    except (OSError, ValueError, KeyError) as error:
        message = str(error) if not isinstance(error, ValidationError) else f"{args.job} is not a valid job: {error}"
        print(f"{args.command}: {message}", file=sys.stderr)
        write_termination_message(message, args.termination_log)
        return ExitCode.RETRYABLE if isinstance(error, OSError) else ExitCode.CONFIGURATION


def _run(args: argparse.Namespace) -> int:
    """Run the subcommand, which imports only its own modules."""
    if args.command == "prepare":
        from rstar2_train.launch.pod.prepare import prepare

        log = args.termination_log
        return prepare(args.job, args.state, progress=args.progress, account=args.account, termination_log=log)
    if args.command == "report":
        from rstar2_train.launch.pod.report import report

        return report(args.job, args.state, ending=args.ending)
    from rstar2_train.launch.pod.attempt import AttemptOptions, launch

    options = AttemptOptions(
        job_file=args.job,
        state=args.state,
        stage=args.stage,
        attempt=args.attempt,
        nodes=args.nodes,
        subdomain=args.subdomain,
        engines=args.engines,
        teacher=args.teacher,
        judge=args.judge,
        environment=args.environment,
        agent_port=args.agent_port,
        progress=args.progress,
        ray_port=args.ray_port,
        head=args.head,
        account=args.account,
        termination_log=args.termination_log,
    )
    return asyncio.run(launch(options, index=int(os.environ.get("JOB_COMPLETION_INDEX", "0"))))


if __name__ == "__main__":
    sys.exit(main())
