"""`rstar2 filter`: its arguments, and what it shows. The flow: `launch/evaluation/filter.py`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2_train.cli.evaluation_options import ProgressBar, add_shared, ended, fail, print_table, run_command
from rstar2_train.utils.options import count

if TYPE_CHECKING:
    from rstar2_train.launch.evaluation.plan import EvalRequest
    from rstar2_train.launch.evaluation.runner import ExternalJudge

NAME = "filter"
DESCRIPTION = """Samples each problem of a file a few times, and writes those that the model does not always solve: what
it always solves teaches it nothing more. What a job's Filter stage does, for any model and by itself."""
EPILOG = """examples:
  rstar2 filter problems.jsonl --model ./checkpoint
  rstar2 filter problems.jsonl --model ./checkpoint --drop-solved 6 --out harder.jsonl
  rstar2 filter problems.jsonl --model .rstar2/my-job/stages/rl/model --manifest my-job.yaml
  rstar2 filter problems.jsonl --endpoint http://127.0.0.1:8000 --tokenizer ./checkpoint

The problems are a file (JSONL, JSON, Parquet, Arrow) of rows {problem, answer, id?, slice?, hard?}; what is kept goes
into a manifest as it is: grpo: {data: kept.jsonl}. Settings not given are those of the manifest's last Filter stage,
or without one 8 samples, dropped when all 8 are right, temperature 1, 8192 response tokens, 10 turns. With the same
model, file, seed and settings a Filter stage keeps the same problems. More samples ask only what is new, another
--drop-solved asks nothing."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Its options, but for --state, which all commands on jobs share."""
    command.add_argument("problems", type=Path, metavar="PROBLEMS", help="the file of problems")
    command.add_argument(
        "--drop-solved", type=count, metavar="N", help="drop a problem with at least so many right samples"
    )
    add_shared(command, description=DESCRIPTION, epilog=EPILOG)
    command.add_argument(
        "--out",
        type=Path,
        metavar="FILE.jsonl|FOLDER",
        help="where the kept problems go, and the report beside them (default: in the state)",
    )


def main(given: argparse.Namespace) -> int:
    """Filter; returns the exit code."""
    return run_command(NAME, given, partial(_filter, given), own=["drop_solved"])


def _filter(given: argparse.Namespace, wanted: EvalRequest, elsewhere: ExternalJudge, bar: ProgressBar) -> int:
    from rstar2_train.evaluation.difficulty import filter_table
    from rstar2_train.launch.evaluation import filter as flow

    filtering = flow.plan_filtering(wanted, given.problems)
    bar.say(filtering.plan.note)
    out = flow.kept_path(given.out, default=filtering.out)
    if out.exists() and out.samefile(given.problems):
        return fail(NAME, f"--out {out} is the file of the problems itself: give another one")
    with bar as shown:
        report = flow.run_filter(filtering, elsewhere, shown, out=out)
    print_table(filter_table(report))
    if not report.kept:
        return fail(
            NAME,
            f"every problem was solved {report.drop_solved} times or more, and nothing was written: give harder "
            "problems, or a higher --drop-solved",
        )
    print(f"kept     {out}\nreport   {flow.report_path(out)}")
    print(f"next     train on them: grpo: {{data: {out}}} in a manifest, in place of a Filter stage and its dataFrom")
    return ended(NAME, lost=report.excluded)
