"""`rstar2 eval`: measure a model on benchmark files. The work is in `launch/evaluation/evaluate.py`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2_train.cli.common import Subparsers, add_command, add_state_option, fail, table_console
from rstar2_train.cli.evaluation_options import EPILOG as SHARED_EPILOG
from rstar2_train.cli.evaluation_options import add_options, print_note, run_command, sampling_exit_code
from rstar2_train.utils.options import user_path

if TYPE_CHECKING:
    from rstar2_train.cli.run_view import TerminalRunView
    from rstar2_train.launch.evaluation.one_stage_job import EvalRequest

NAME = "eval"
DESCRIPTION = """Measure a model on benchmark files, with the agent loop, the tools and the scoring of training: pass@1
with its 95 % interval, pass@k, response length, tool calls and their errors, truncated responses, and a
table of problems."""
EPILOG = """examples:
  rstar2 eval --model ./checkpoint --benchmark aime24.jsonl
  rstar2 eval --model ./checkpoint --data benchmarks/ --benchmark aime24,aime25,math500 --samples 16
  rstar2 eval --model .rstar2/tiny/stages/rl-3/model --manifest examples/tiny.yaml \\
              --benchmark report=.rstar2/tiny/generated/tiny-seed-0/report.jsonl
  rstar2 eval --endpoint http://127.0.0.1:8000 --model NAME --tokenizer ./checkpoint --benchmark aime24.jsonl
  rstar2 eval --model ./checkpoint --benchmark aime24.jsonl --mlflow http://mlflow:5000

A benchmark is a file (JSONL, JSON, Parquet, Arrow) of rows {problem, answer, id?, slice?, hard?}. Default settings are
those of the manifest's last Evaluate stage. Without one they are the paper's: 16 samples, temperature 0.6, 30K
response tokens, 30 turns. With more --samples or benchmarks, only the new samples are generated."""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "measure a model on benchmark files; can be resumed"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG + SHARED_EPILOG)
    parser.add_argument(
        "--benchmark",
        action="append",
        required=True,
        metavar="FILE|NAME=FILE[,...]",
        help="benchmark files; a NAME alone is a file in --data; may be repeated",
    )
    parser.add_argument(
        "--data",
        type=user_path,
        default=Path(),
        metavar="FOLDER",
        help="folder of benchmarks given by name (default: .)",
    )
    add_options(parser)
    parser.add_argument("--out", type=user_path, metavar="FOLDER", help="folder of the report (default: in --state)")
    parser.add_argument("--mlflow", default="", metavar="URI", help="send the figures and the report to this MLflow")
    parser.add_argument("--experiment", default="rstar2", help="MLflow experiment (default: %(default)s)")
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Evaluate the model; return the exit code."""
    return run_command(NAME, args, partial(_evaluate, args))


def _evaluate(args: argparse.Namespace, request: EvalRequest, view: TerminalRunView) -> int:
    from rstar2_train.cli.evaluation_tables import EvaluationTables
    from rstar2_train.launch.evaluation import evaluate as flow

    evaluation = flow.prepare_evaluation(request, args.benchmark, data=args.data)
    print_note(view, evaluation.measurement.note)
    out = args.out or evaluation.out
    flow.check_out(out)
    result = flow.evaluate(evaluation, view, out=out)
    table_console().print(EvaluationTables(result))
    print(f"report   {out / flow.PAGE}\nfigures  {out / flow.REPORT}\nsamples  {out / flow.TRAJECTORIES}")
    if args.mlflow:
        print(f"Sending figures and report to {args.mlflow} ...", flush=True)
        name = f"eval {Path(evaluation.measurement.model).name}: {', '.join(result.benchmarks)}"
        shipped = flow.track(result, out, uri=args.mlflow, experiment=args.experiment, name=name)
        if not shipped.complete:
            return fail(
                NAME, f"MLflow does not have everything: {shipped.error}\nRun the same command to send the rest."
            )
        if shipped.rejection_message:
            return fail(NAME, shipped.rejection_message)
    return sampling_exit_code(NAME, lost=result.excluded)
