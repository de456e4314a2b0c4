"""Runs one attempt of one stage: `python -m rstar2_train.orchestrator --state DIR --stage NAME --attempt N`.

Pod 0 of the trainer and `rstar2 run` start this process. It runs the stage, writes the outcome and exits with the
outcome's code (api/contracts.py). SIGTERM and SIGINT suspend the stage: it finishes or abandons the step, writes a
checkpoint and exits with code 75.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import shutil
import sys
import traceback
from pathlib import Path

from rstar2_train.api.contracts import ExitCode, Outcome, StageFailed, write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.orchestrator.context import Endpoints, StageContext, SuspendRequested
from rstar2_train.orchestrator.leftovers import remove_leftovers
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.utils.disk import DISK_FULL
from rstar2_train.utils.event_loop import run_with_uvloop
from rstar2_train.utils.loop_watch import watch_loop
from rstar2_train.utils.open_files import raise_open_file_limit

log = logging.getLogger("rstar2.orchestrator")

STAGE_MODULES = {"SFT": "sft", "GRPO": "grpo", "Filter": "filter", "Evaluate": "evaluate"}
"""Stage type -> module of `orchestrator.stages`. Only the module of the stage is imported."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    arguments = argparse.ArgumentParser(prog="python -m rstar2_train.orchestrator", description=__doc__)
    arguments.add_argument("--state", type=Path, required=True, help="state directory of the job, with its job.json")
    arguments.add_argument("--stage", required=True, help="name of the stage to run")
    arguments.add_argument("--attempt", type=int, required=True, help="number of this attempt, as in attempt.json")
    arguments.add_argument("--engine", action="append", default=[], help="base URL of a vLLM engine; repeatable")
    arguments.add_argument("--served-model", default="", metavar="NAME", help="model of an engine of another project")
    arguments.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="tokenizer; default: that of the model")
    arguments.add_argument("--keep-samples", action="store_true", help="keep the samples of a finished measurement")
    arguments.add_argument("--engines", default="", metavar="HOST:PORT", help="discover engines by this DNS name")
    arguments.add_argument("--teacher", action="append", default=[], help="base URL of a teacher's engine; repeatable")
    arguments.add_argument("--judge", default="", help="base URL of the judge API")
    arguments.add_argument(
        "--environment", action="append", default=[], metavar="HOST:PORT", help="server of the environment; repeatable"
    )
    arguments.add_argument("--agent-port", type=int, default=0, help="port for the pods of the agent; default: no pods")
    arguments.add_argument("--bucket", action="store_true", help="engines read weights from spec.storage.url")
    arguments.add_argument("--share-device", action="store_true", help="trainer and engines time-share one GPU")
    arguments.add_argument("--ray", help="Ray address; default: a private Ray on this machine")
    return arguments


async def run_stage(ctx: StageContext) -> Outcome:
    """Run the stage and return its outcome. Every exception becomes an outcome."""
    try:
        ctx.check_current()
        _start_run(ctx)
        await asyncio.to_thread(remove_leftovers, ctx.job, ctx.state)
        stage = importlib.import_module(f"rstar2_train.orchestrator.stages.{STAGE_MODULES[ctx.stage.type]}")
        with watch_loop():
            outcome: Outcome = await stage.run(ctx)
        return outcome
    except SuspendRequested:
        return ctx.outcome("suspended", "Suspended", "Suspended on request; resumable from the last checkpoint.")
    except StageFailed as error:
        outcome = ctx.outcome("failed", error.reason, str(error))
        return outcome.model_copy(update={"retryable": error.retryable})
    except OSError as error:
        if error.errno not in DISK_FULL:
            return _defect(ctx)
        message = f"No space left on the disk of {ctx.state.root}. Free some space, then run the job again."
        return ctx.outcome("failed", "StorageFull", message)
    except Exception:
        return _defect(ctx)


def _start_run(ctx: StageContext) -> None:
    """Start the MLflow run of the stage, or continue it."""
    stage = ctx.stage
    settings = ctx.job.grpo_settings(stage) if stage.type == "GRPO" else getattr(stage, stage.type.lower())
    params = settings.model_dump(by_alias=True)
    ctx.tracker.start_stage(stage.name, type=stage.type, attempt=ctx.attempt, params=params)


def _defect(ctx: StageContext) -> Outcome:
    """Return the outcome of an unexpected exception, and log its traceback."""
    error = traceback.format_exc()
    log.error("%s", error)
    return ctx.outcome("failed", "Defect", error.strip().splitlines()[-1][:1000] + " (the traceback is in the log)")


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = parser().parse_args(argv)
    raise_open_file_limit()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    state = JobState(options.state.resolve())
    job = state.job()
    stage = job.stage(options.stage)
    tracker = Tracker.for_job(job, state.root)
    endpoints = Endpoints(
        engines=tuple(options.engine),
        served_model=options.served_model,
        engine_service=options.engines,
        teacher=tuple(options.teacher),
        judge=options.judge,
        environments=tuple(options.environment),
        agent_port=options.agent_port,
        ray=options.ray,
        bucket=options.bucket,
        share_device=options.share_device,
    )
    ctx = StageContext(
        job,
        stage,
        options.attempt,
        state,
        endpoints,
        tracker,
        tokenizer=options.tokenizer,
        keep_samples=options.keep_samples,
    )
    return run_with_uvloop(_run_attempt(ctx))


async def _run_attempt(ctx: StageContext) -> int:
    """Run the stage, track it, write its outcome, and return the exit code."""
    stage, tracker = ctx.stage, ctx.tracker
    ctx.install_signal_handlers()
    ctx.report(phase="Starting", total_steps=ctx.job.total_steps(stage))
    outcome = await run_stage(ctx)
    if outcome.reason != "StaleAttempt":
        tracker.end_stage(stage.name, outcome.outcome, reason=outcome.reason)
    tracker.close()
    if outcome.reason == "StaleAttempt":  # the files and the MLflow run belong to the newer attempt
        return ExitCode.RETRYABLE
    write_model(ctx.folder.outcome_file, outcome)
    if outcome.ended_well and not ctx.keep_samples:
        shutil.rmtree(ctx.folder.samples, ignore_errors=True)  # needed only to resume
    ctx.report(phase="Finished")
    log.info("%s: %s (%s) %s", stage.name, outcome.outcome, outcome.reason, outcome.message)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
