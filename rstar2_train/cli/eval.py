"""`rstar2 eval`: its arguments, and what it shows. The flow: `launch/evaluation/evaluate.py`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2_train.cli.evaluation_options import ProgressBar, add_shared, ended, fail, print_table, run_command

if TYPE_CHECKING:
    from rstar2_train.launch.evaluation.plan import EvalRequest
    from rstar2_train.launch.evaluation.runner import ExternalJudge

NAME = "eval"
DESCRIPTION = """Measures a model on benchmark files, with the agent loop, the tools and the scoring of training: pass@1
with its 95 % interval, pass@k, length, tool calls and their errors, what limits cut off, and a table of problems."""
EPILOG = """examples:
  rstar2 eval --model ./checkpoint --benchmark aime24.jsonl
  rstar2 eval --model ./checkpoint --data benchmarks/ --benchmark aime24,aime25,math500 --samples 16
  rstar2 eval --model .rstar2/tiny/stages/rl-3/model --manifest examples/tiny.yaml \\
              --benchmark report=.rstar2/tiny/generated/tiny-seed-0/report.jsonl
  rstar2 eval --endpoint http://127.0.0.1:8000 --model NAME --tokenizer ./checkpoint --benchmark aime24.jsonl
  rstar2 eval --model ./checkpoint --benchmark aime24.jsonl --mlflow http://mlflow:5000

A benchmark is a file (JSONL, JSON, Parquet, Arrow) of rows {problem, answer, id?, slice?, hard?}. Settings not given
are those of the manifest's last Evaluate stage, or without one the paper's: 16 samples, temperature 0.6, 30K response
tokens, 30 turns. More samples or benchmarks ask only what is new."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Its options, but for --state, which all commands on jobs share."""
    command.add_argument(
        "--benchmark",
        action="append",
        required=True,
        metavar="FILE|NAME=FILE[,...]",
        help="benchmark files; a bare NAME is looked for in --data; may be given more than once",
    )
    command.add_argument(
        "--data", type=Path, default=Path(), metavar="FOLDER", help="folder of benchmarks given by name (default: .)"
    )
    add_shared(command, description=DESCRIPTION, epilog=EPILOG)
    command.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the report (default: in the state)")
    command.add_argument("--mlflow", default="", metavar="URI", help="send figures and report to this MLflow")
    command.add_argument("--experiment", default="rstar2", help="MLflow experiment (default: %(default)s)")


def main(given: argparse.Namespace) -> int:
    """Evaluate; returns the exit code."""
    return run_command(NAME, given, partial(_evaluate, given))


def _evaluate(given: argparse.Namespace, wanted: EvalRequest, elsewhere: ExternalJudge, bar: ProgressBar) -> int:
    from rstar2_train.evaluation.result import ResultTable
    from rstar2_train.launch.evaluation import evaluate as flow

    evaluation = flow.plan_evaluation(wanted, given.benchmark, data=given.data)
    bar.say(evaluation.plan.note)
    out = given.out or evaluation.out
    flow.check_out(out)
    with bar as shown:
        result = flow.evaluate(evaluation, elsewhere, shown, out=out)
    print_table(ResultTable(result))
    print(f"report   {out / flow.PAGE}\nfigures  {out / flow.REPORT}\nsamples  {out / flow.TRAJECTORIES}")
    if given.mlflow:
        print(f"sending figures and report to {given.mlflow} ...", flush=True)
        name = f"eval {Path(evaluation.plan.model).name}: {', '.join(result.benchmarks)}"
        shipped = flow.track(result, out, uri=given.mlflow, experiment=given.experiment, name=name)
        if not shipped.complete:
            return fail(NAME, f"MLflow has not taken everything: {shipped.error}\nthe same command sends it again")
        if shipped.rejection_message:
            return fail(NAME, shipped.rejection_message)
    return ended(NAME, lost=result.overall.excluded)
