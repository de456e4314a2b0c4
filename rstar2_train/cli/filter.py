"""`rstar2 filter`: select the problems that a model does not always solve. See `launch/evaluation/filter.py`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail, table_console
from rstar2_train.cli.evaluation_options import EPILOG as SHARED_EPILOG
from rstar2_train.cli.evaluation_options import add_options, print_note, run_command, sampling_exit_code
from rstar2_train.utils.options import count, user_path

if TYPE_CHECKING:
    from rstar2_train.cli.run_view import TerminalRunView
    from rstar2_train.launch.evaluation.one_stage_job import EvalRequest

NAME = "filter"
DESCRIPTION = """Sample each problem of a file several times, and write the problems that the model does not always
solve: a problem that it always solves gives no training signal. Does what a job's Filter stage does, for any model."""
EPILOG = """examples:
  rstar2 filter problems.jsonl --model ./checkpoint
  rstar2 filter problems.jsonl --model ./checkpoint --drop-solved 6 --out harder.jsonl
  rstar2 filter problems.jsonl --model .rstar2/my-job/stages/rl/model --manifest my-job.yaml
  rstar2 filter problems.jsonl --endpoint http://127.0.0.1:8000 --tokenizer ./checkpoint

The problems are a file (JSONL, JSON, Parquet, Arrow) of rows {problem, answer, id?, slice?, hard?}. A manifest uses the
kept problems unchanged: grpo: {data: kept.jsonl}. Default settings are those of the manifest's last Filter stage.
Without one: 8 samples, dropped if all 8 are correct, temperature 1, 8192 response tokens, 10 turns. With the same
model, file, seed and settings, a Filter stage keeps the same problems. With more --samples, only the new samples are
generated; with another --drop-solved, none."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "drop the problems that a model always solves; can be resumed"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG + SHARED_EPILOG)
    parser.add_argument("problems", type=user_path, metavar="PROBLEMS", help="file of problems")
    parser.add_argument("--drop-solved", type=count, metavar="N", help="drop a problem with at least N correct samples")
    add_options(parser)
    parser.add_argument(
        "--out",
        type=user_path,
        metavar="FILE.jsonl|FOLDER",
        help="file or folder of the kept problems and their report (default: in --state)",
    )
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Filter the problems; return the exit code."""
    return run_command(NAME, args, partial(_filter, args), own=["drop_solved"])


def _filter(args: argparse.Namespace, request: EvalRequest, view: TerminalRunView) -> int:
    from rstar2_train.cli.evaluation_tables import filter_table
    from rstar2_train.launch.evaluation import filter as flow

    filtering = flow.prepare_filter(request, args.problems)
    print_note(view, filtering.measurement.note)
    out = flow.kept_path(args.out, default=filtering.out)
    if out.exists() and out.samefile(args.problems):
        return fail(NAME, f"--out {out} is the input file. Pass a different --out.")
    report = flow.run_filter(filtering, view, out=out)
    table_console().print(filter_table(report))
    if not report.kept:
        return fail(
            NAME,
            f"every problem has {report.drop_solved} or more correct samples, so no file was written. Use harder "
            "problems, or a higher --drop-solved.",
        )
    print(f"kept     {out}\nreport   {flow.report_path(out)}")
    print(f"next     train on them: grpo: {{data: {out}}} in a manifest, instead of a Filter stage and its dataFrom")
    return sampling_exit_code(NAME, lost=report.excluded)
