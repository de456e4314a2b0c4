"""What the commands of this room share on the command line: arguments, the progress bar, how errors end them.

Imports little: `rstar2 --help` reads it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rstar2_train.utils.options import ACCELERATORS, count

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rstar2_train.evaluation.sample_result import SampleResult
    from rstar2_train.launch.evaluation.plan import EvalRequest
    from rstar2_train.launch.evaluation.runner import ExternalJudge, ProgressSink

SETTINGS = ("samples", "temperature", "top_p", "max_response_tokens", "max_turns", "seed")
"""Options of all these commands that lie over a stage's settings."""
LINE_SECONDS = 30.0
"""Between two lines about the progress where there is no terminal for a bar."""
EPILOG = """

Without --endpoint an engine is started here, without --judge a judge; both are stopped at the end. Tokens of services
elsewhere: RSTAR2_ENGINE_TOKEN, RSTAR2_JUDGE_TOKEN.

Each sample is kept as it ends. Stop it (Ctrl-C, or kill -9): the same command goes on and asks no sample twice.
Exit code: 0 done, 75 stopped by a signal, 76 samples were lost to infrastructure, 1 anything else."""


def add_shared(command: argparse.ArgumentParser, *, description: str, epilog: str) -> None:
    """Which model is asked, where, and how it is sampled; what is said of all these commands follows `epilog`."""
    command.description = description
    command.epilog = epilog + EPILOG
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument(
        "--model",
        default="",
        help="folder of the model; with --endpoint the name it is served under (default there: the only one)",
    )
    command.add_argument("--endpoint", default="", metavar="URL", help="a vLLM server that serves the model already")
    command.add_argument("--judge", default="", metavar="URL", help="a judge that runs already (`rstar2 judge serve`)")
    command.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="tokenizer (default: the model's own)")
    command.add_argument(
        "--manifest", type=Path, metavar="FILE", help="take prompts, tool, engine, judge and sampling from this job"
    )
    command.add_argument("--samples", type=count, metavar="N", help="samples of each problem")
    command.add_argument("--temperature", type=float, metavar="T", help="sampling temperature")
    command.add_argument("--top-p", type=float, metavar="P", help="nucleus sampling mass")
    command.add_argument(
        "--max-response-tokens", type=count, metavar="N", help="budget of a response, tool output included"
    )
    command.add_argument("--max-turns", type=count, metavar="N", help="most assistant turns")
    command.add_argument("--seed", type=int, metavar="N", help="seed of all samples (default: the manifest's, or 0)")
    command.add_argument(
        "--accelerator",
        choices=tuple(ACCELERATORS),
        help="what the engine computes on (default: the manifest's, or what this machine has)",
    )


def run_command(
    name: str,
    given: argparse.Namespace,
    work: Callable[[EvalRequest, ExternalJudge, ProgressBar], int],
    *,
    own: Sequence[str] = (),
) -> int:
    """Do the work of the command `name` and return its exit code; what goes wrong is said on stderr.

    `own`: options of the command, beside SETTINGS, that lie over a stage's settings.
    """
    from rstar2_train.api.contracts import ExitCode
    from rstar2_train.inference.client import EngineRejected, EngineUnavailable
    from rstar2_train.judge.types import JudgeUnavailable
    from rstar2_train.launch.evaluation.plan import EvalRequest
    from rstar2_train.launch.evaluation.runner import ExternalJudge, StopRequested, TooManyLost
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.launch.local.run import add_tools_to_path
    from rstar2_train.rollout.collector import PromptTooLong
    from rstar2_train.utils.supervisor import ChildFailed

    if not given.model and not given.endpoint:
        return fail(name, "--model FOLDER is needed, or --endpoint URL")
    add_tools_to_path()
    elsewhere = ExternalJudge(
        judge=given.judge.rstrip("/"),
        judge_token=os.environ.get("RSTAR2_JUDGE_TOKEN", ""),
        engine_token=os.environ.get("RSTAR2_ENGINE_TOKEN", ""),
    )
    wanted = EvalRequest(
        model=given.model,
        endpoint=given.endpoint.rstrip("/").removesuffix("/v1"),
        engine_token=elsewhere.engine_token,
        tokenizer=given.tokenizer,
        manifest=given.manifest,
        settings={option: getattr(given, option) for option in (*SETTINGS, *own)},
        accelerator=ACCELERATORS[given.accelerator] if given.accelerator else None,
        state=given.state,
    )
    try:
        return work(wanted, elsewhere, ProgressBar())
    except (PreflightError, ChildFailed, EngineUnavailable, EngineRejected, JudgeUnavailable, PromptTooLong) as error:
        return fail(name, str(error))
    except OSError as error:
        return fail(name, f"{error.filename or given.state}: {error.strerror or error}")
    except TooManyLost as error:
        fail(name, f"{error}\nno report was written; the same command asks the lost samples again")
        return ExitCode.RETRYABLE
    except (StopRequested, KeyboardInterrupt):
        fail(name, "stopped; what was sampled is kept, and the same command goes on")
        return ExitCode.SUSPENDED


def ended(name: str, *, lost: int) -> int:
    """The exit code of a command that has written its report, of which `lost` samples are not a part."""
    from rstar2_train.api.contracts import ExitCode

    if not lost:
        return ExitCode.DONE
    fail(name, f"{lost} samples were lost to infrastructure; the same command asks them again")
    return ExitCode.RETRYABLE


def print_table(table: RenderableType) -> None:
    """Tables on stdout; for a file or a pipe wide enough for every column."""
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)


def fail(name: str, message: str) -> int:
    """Say on stderr what is wrong; returns the exit code of what has no other."""
    print(f"rstar2 {name}: {message}", file=sys.stderr)
    return 1


class ProgressBar:
    """The progress bar, and words above it; in a file a line every LINE_SECONDS. A context manager."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("samples", total=None, visible=False)
        self._ended = self._correct = self._lost = 0
        self._said = time.monotonic()

    def __enter__(self) -> ProgressSink:
        from rstar2_train.launch.evaluation.runner import ProgressSink

        self._bar.start()
        return ProgressSink(self.say, self._begin, self._done)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, words: str) -> None:
        """Tell a person something, above the bar; nothing when there is nothing to tell."""
        if words:
            self._bar.console.print(words, markup=False, highlight=False, soft_wrap=True)

    def _begin(self, have: int, total: int) -> None:
        if have:
            self.say(f"{have} of {total} samples are there already")
        self._bar.update(self._task, total=total, completed=have, visible=True)

    def _done(self, scored: SampleResult) -> None:
        self._ended += 1
        self._correct += scored.correct
        self._lost += scored.failed
        valid = self._ended - self._lost
        words = f"samples, {self._correct / valid:.0%} right" if valid else "samples"
        words += f", {self._lost} lost" if self._lost else ""
        self._bar.update(self._task, advance=1, description=words)
        if not self._bar.console.is_terminal and time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            task = self._bar.tasks[self._task]
            self.say(f"{task.completed:.0f} of {task.total:.0f} {words}")
