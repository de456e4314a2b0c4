"""Common parts of `rstar2 eval` and `rstar2 filter`: options, errors and exit codes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from rstar2_train.cli.common import add_base_option, fail
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN
from rstar2_train.utils.options import ACCELERATORS, count, user_path
from rstar2_train.utils.text import reason

if TYPE_CHECKING:
    from rstar2_train.cli.run_view import TerminalRunView
    from rstar2_train.launch.evaluation.one_stage_job import EvalRequest

SETTINGS = ("samples", "temperature", "top_p", "max_response_tokens", "max_turns", "seed")
"""Options of both commands that replace a stage's settings."""
EPILOG = f"""

Without --endpoint the command starts an engine, without --judge a judge, and stops them at the end. The tokens of
external services are read from {ENGINE_TOKEN} and {JUDGE_TOKEN}, or from the files that
{ENGINE_TOKEN}_FILE and {JUDGE_TOKEN}_FILE name.

Each sample is saved when it is done. After Ctrl-C, kill -9 or a crash, run the same command again to resume.

Exit code: 0 done, 75 stopped by a signal, 76 samples lost to infrastructure failures, 1 any other error."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the model, its services and the sampling."""
    parser.add_argument(
        "--model",
        default="",
        metavar="MODEL",
        help="model folder, adapter, or MANIFEST[/STAGE] of a job with storage.url; with --endpoint, the name of the "
        "served model (default: the only one)",
    )
    add_base_option(parser)
    parser.add_argument("--endpoint", default="", metavar="URL", help="a running vLLM server of the model")
    parser.add_argument("--judge", default="", metavar="URL", help="a running judge (`rstar2 judge serve`)")
    parser.add_argument("--tokenizer", type=user_path, metavar="FOLDER", help="tokenizer (default: the model's)")
    parser.add_argument(
        "--manifest", type=user_path, metavar="FILE", help="use prompts, tool, engine, judge and sampling of this job"
    )
    parser.add_argument("--samples", type=count, metavar="N", help="samples per problem")
    parser.add_argument("--temperature", type=float, metavar="T", help="sampling temperature")
    parser.add_argument("--top-p", type=float, metavar="P", help="nucleus sampling mass")
    parser.add_argument(
        "--max-response-tokens", type=count, metavar="N", help="limit of a response in tokens, tool outputs included"
    )
    parser.add_argument("--max-turns", type=count, metavar="N", help="limit of assistant turns per response")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of all samples (default: the manifest's, or 0)")
    parser.add_argument(
        "--accelerator",
        choices=tuple(ACCELERATORS),
        help="accelerator of the engine (default: the manifest's, or auto-detect)",
    )


def run_command(
    name: str,
    args: argparse.Namespace,
    work: Callable[[EvalRequest, TerminalRunView], int],
    *,
    own: Sequence[str] = (),
) -> int:
    """Run the work of the command `name`; print its errors and return its exit code.

    `work`: takes the options, and the view of progress and notes. `own`: further options of the command that replace
    a stage's settings.
    """
    from rstar2_train.api.contracts import ExitCode
    from rstar2_train.cli.run_view import TerminalRunView
    from rstar2_train.launch.evaluation.measure import MeasurementFailed
    from rstar2_train.launch.evaluation.one_stage_job import EvalRequest
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.launch.local.run import add_tools_to_path
    from rstar2_train.launch.local.services import RunningServices
    from rstar2_train.utils.supervisor import StopRequested

    if not args.model and not args.endpoint:
        return fail(name, "pass --model FOLDER or --endpoint URL")
    add_tools_to_path()
    try:
        request = EvalRequest(
            model=args.model,
            base=args.base,
            running=RunningServices.from_options(endpoint=args.endpoint, judge=args.judge),
            tokenizer=args.tokenizer,
            manifest=args.manifest,
            settings={option: getattr(args, option) for option in (*SETTINGS, *own)},
            accelerator=ACCELERATORS[args.accelerator] if args.accelerator else None,
            state=args.state,
        )
        return work(request, TerminalRunView(Console(stderr=True)))
    except PreflightError as error:
        return fail(name, str(error))
    except OSError as error:
        return fail(name, f"{error.filename or args.state}: {reason(error)}")
    except MeasurementFailed as error:
        fail(name, str(error))
        return error.code
    except (StopRequested, KeyboardInterrupt):
        fail(name, "Stopped. Finished samples are saved; run the same command to resume.")
        return ExitCode.SUSPENDED


def print_note(view: TerminalRunView, note: str) -> None:
    """Print the note of a measurement; nothing if it is empty."""
    if note:
        view.print_line(note, "warning")


def sampling_exit_code(name: str, *, lost: int) -> int:
    """Return the exit code of a command that has written its report. `lost`: samples that the report excludes."""
    from rstar2_train.api.contracts import ExitCode

    if not lost:
        return ExitCode.DONE
    fail(name, f"{lost} samples were lost to infrastructure failures. Run the same command to retry them.")
    return ExitCode.RETRYABLE
