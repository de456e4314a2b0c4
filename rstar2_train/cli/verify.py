"""`rstar2 verify`: repeat and explain one verdict, of two texts or of a stored rollout."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail, job_state, unknown_job

if TYPE_CHECKING:
    from rstar2_train.api.state_dir import JobState
    from rstar2_train.rollout.trajectory import Trajectory

NAME = "verify"
DESCRIPTION = "Compare an answer with a known answer, as the default reward does, and explain the verdict."
EPILOG = """examples:
  rstar2 verify --known '\\frac{1}{2}' --answer 0.5
  rstar2 verify --job tiny --problem L2-17            the stored rollouts of a problem, each verdict repeated
  rstar2 verify --job tiny --problem L2-17 --sample 3

The exit code is 0 if the answer is right, 1 if it is wrong, 2 if it is undecided. `kubectl rstar2 verify JOB` repeats
the verdicts of a job in a cluster."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "repeat and explain one verdict"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--known", metavar="TEXT", help="the known answer, as in a row's `answer`")
    parser.add_argument("--answer", metavar="TEXT", help="the answer; of a response, the content of its last box")
    parser.add_argument(
        "--job", metavar="JOB", help="a job with stored rollouts, or its manifest, instead of the texts"
    )
    add_rollout_options(parser, required=False)
    add_state_option(parser)


def add_rollout_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that select stored rollouts, also for `kubectl rstar2 verify`."""
    parser.add_argument("--problem", required=required, metavar="ID", help="the `id` of a row")
    parser.add_argument("--sample", type=int, metavar="N", help="only this rollout of the problem, from 0")


def main(args: argparse.Namespace) -> int:
    """Print the verdicts; return the exit code of the last one."""
    texts, stored = (args.known, args.answer), (args.job, args.problem, args.sample)
    if any(text is not None for text in texts) and any(value is not None for value in stored):
        return fail(NAME, "pass either --known and --answer, or --job, --problem and --sample: not options of both")
    if args.job is not None:
        if args.problem is None:
            return fail(NAME, "--job needs --problem ID: `rstar2 analyse JOB` shows the ids")
        return _stored(args.job, args.state, args.problem, args.sample)
    if not args.known or args.answer is None:
        return fail(NAME, "pass --known, which may not be empty, and --answer, or --job and --problem")
    return explain(args.known, args.answer)


def explain(known: str, answer: str, *, indent: str = "") -> int:
    """Print the verdict on an answer, its reason and the typed values of both; return the exit code."""
    from rstar2_verify import verify
    from rstar2_verify.cli import EXIT_CODES, described

    verdict = verify(known, answer)
    print(f"{indent}{verdict.outcome}: {verdict.reason}")
    print(f"{indent}known:  {known!r} is {described(verdict.known)}")
    print(f"{indent}answer: {answer!r} is {described(verdict.answer)}")
    return EXIT_CODES[verdict.outcome]


def _stored(job: str, jobs: Path, problem: str, sample: int | None) -> int:
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.rollout.trajectory_store import TrajectoryStoreError

    try:
        state = job_state(job, jobs)
    except PreflightError as error:
        return fail(NAME, str(error))
    if not state.job_file.exists():
        return unknown_job(NAME, state.root)
    code, count = 1, 0
    try:
        for file, row in _rollouts(state):
            if row.prompt_id == problem and sample in (None, row.sample):
                print(f"{file}, sample {row.sample}: {_recorded(row)}")
                code, count = _repeated(row), count + 1
    except TrajectoryStoreError as error:
        return fail(NAME, str(error))
    if not count:
        which = f" with sample {sample}" if sample is not None else ""
        return fail(NAME, f"{state.root}: no stored rollout of problem {problem!r}{which}")
    return code


def _rollouts(state: JobState) -> Iterator[tuple[str, Trajectory]]:
    """Yield the stored rollouts of a job, each with the name of its file. Raises TrajectoryStoreError."""
    from rstar2_train.rollout import trajectory_store

    for stage in state.job().spec.stages:
        for step, file in trajectory_store.step_files(state.stage(stage.name).trajectories):
            for row in trajectory_store.read(file):
                yield f"stage {stage.name}, file {step}", row


def _recorded(row: Trajectory) -> str:
    reason = f", {row.reason}" if row.reason else ""
    lost = f", lost to {row.lost_to}: {row.error}" if row.failed else ""
    return f"recorded verdict {row.verdict}, reward {row.reward:g}{reason}{lost}"


def _repeated(row: Trajectory) -> int:
    if row.answer is None:
        tags = "no complete <answer> block" if not row.answer_tags else "no boxed answer in the last <answer> block"
        print(f"  no answer: {tags} in the text of the model, which ended with {row.stop}")
        return 1
    return explain(row.gold, row.answer, indent="  ")
