"""`rstar2 env check`: run one row of data and print the conversation. Work: `launch/evaluation/task_check.py`."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN
from rstar2_train.utils.options import count, user_path
from rstar2_train.utils.text import reason

NAME = "env check"
DESCRIPTION = """Run one row of data through the agent loop, the tools, the sandbox and the reward of a job, and print
the conversation as the trainer sees it: trained and masked tokens, statuses of calls, penalties, reward."""
EPILOG = f"""examples:
  rstar2 env check job.yaml                            row 1; a script calls each tool, then gives the known answer
  rstar2 env check job.yaml --row 3 --script turns.txt
  rstar2 env check job.yaml --endpoint http://127.0.0.1:8000      a model that a vLLM server serves
  rstar2 env check job.yaml --judge http://127.0.0.1:8088         a running judge: no start-up time

A script is a text file: the turns of the model exactly as it writes them, separated by lines `---`. The tokens of
external services are read from {ENGINE_TOKEN} and {JUDGE_TOKEN}.

Exit code: 0 if the row was scored, 1 if not: an invalid row, a tool that cannot be imported, a checker that fails."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand and its own subcommand."""
    parser = add_command(commands, "env", main, help="try the tools and rewards of a job on one row: check")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND")
    help = "run one row and print the conversation as the trainer sees it"
    check = add_command(verbs, "check", main, help=help, description=DESCRIPTION, epilog=EPILOG)
    check.add_argument("file", type=user_path, metavar="MANIFEST", help="AgenticRLJob manifest (YAML)")
    check.add_argument("--row", type=count, default=1, metavar="N", help="number of the row, from 1 (default: 1)")
    check.add_argument("--stage", default="", help="stage with the data and the limits (default: the first with rows)")
    check.add_argument("--data", type=user_path, metavar="FILE", help="file of the row (default: that of the stage)")
    model = check.add_mutually_exclusive_group()
    model.add_argument("--script", type=user_path, metavar="FILE", help="turns of the model (default: see below)")
    model.add_argument("--endpoint", "--url", default="", metavar="URL", help="a running vLLM server of a model")
    check.add_argument("--model", default="", help="with --endpoint, name of the model (default: the only one)")
    check.add_argument("--judge", default="", metavar="URL", help="a running judge (`rstar2 judge serve`)")
    check.add_argument("--tokenizer", type=user_path, metavar="FOLDER", help="tokenizer (default: the job's model)")
    add_state_option(check)


def main(args: argparse.Namespace) -> int:
    """Run the check; return the exit code."""
    from rstar2_train.cli.check_view import render_check
    from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
    from rstar2_train.judge.types import JudgeUnavailable
    from rstar2_train.launch.evaluation.task_check import CheckRequest, prepare_check, run_check
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.launch.local.run import add_tools_to_path
    from rstar2_train.launch.local.services import RunningServices
    from rstar2_train.rollout.collector import PromptTooLong
    from rstar2_train.utils.supervisor import ChildFailed, StopRequested

    if args.model and not args.endpoint:
        return fail(NAME, "--model needs --endpoint URL: it names the model of that server")
    add_tools_to_path()
    console = Console(highlight=False, soft_wrap=True)
    try:
        check = prepare_check(
            CheckRequest(
                manifest=args.file,
                row=args.row,
                stage=args.stage,
                data=args.data,
                script=args.script,
                running=RunningServices.from_options(endpoint=args.endpoint, judge=args.judge),
                model=args.model,
                tokenizer=args.tokenizer,
                state=args.state,
            )
        )
        trajectory = run_check(check, notify=lambda message: print(message, file=sys.stderr))
    except (PreflightError, ChildFailed, EngineUnavailable, EngineRejected, JudgeUnavailable, PromptTooLong) as error:
        return fail(NAME, str(error))
    except OSError as error:
        return fail(NAME, f"{error.filename or args.state}: {reason(error)}")
    except StopRequested as error:
        return error.exit_code
    console.print(render_check(check, trajectory), end="")
    if trajectory.failed:
        return fail(NAME, f"row {check.problem.id} was not scored: {trajectory.error}")
    return 0
