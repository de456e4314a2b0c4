"""The driver of one attempt of one stage: `python -m rstar2_train.orchestrator --state DIR --stage NAME --attempt N`.

The process that a stage's pod 0 runs, and that `rstar2 run` starts as a child. It runs the stage, writes the outcome,
and exits with the outcome's code (api/contracts.py). SIGTERM and SIGINT suspend: the step is finished or abandoned,
a checkpoint written, and the exit code is 75.
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
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.utils.files import FULL
from rstar2_train.utils.open_files import raise_open_files

log = logging.getLogger("rstar2.driver")

DRIVERS = {"SFT": "sft", "GRPO": "grpo", "Filter": "filter", "Evaluate": "evaluate"}
"""Stage type -> the module of this package whose `run` does it; only that one is imported."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(prog="python -m rstar2_train.orchestrator", description=__doc__)
    arguments.add_argument("--state", type=Path, required=True, help="the job's state folder, with job.json in it")
    arguments.add_argument("--stage", required=True, help="name of the stage to run")
    arguments.add_argument("--attempt", type=int, required=True, help="number of this attempt, as in attempt.json")
    arguments.add_argument("--engine", action="append", default=[], help="base URL of a vLLM engine; repeat for more")
    arguments.add_argument("--engines", default="", metavar="HOST:PORT", help="find engines by this name instead")
    arguments.add_argument("--judge", default="", help="base URL of the judge API")
    arguments.add_argument("--ray", help="Ray address; default: a private Ray on this machine")
    return arguments


async def drive(ctx: StageContext) -> Outcome:
    """Run the stage and say how it ended. Every exception becomes an outcome; none escapes."""
    try:
        driver = importlib.import_module(f"rstar2_train.orchestrator.stages.{DRIVERS[ctx.stage.type]}")
        outcome: Outcome = await driver.run(ctx)
        return outcome
    except SuspendRequested:
        return ctx.outcome("suspended", "Suspended", "asked to stop; run again to go on")
    except StageFailed as error:
        outcome = ctx.outcome("failed", error.reason, str(error))
        return outcome.model_copy(update={"retryable": error.retryable})
    except OSError as error:
        if error.errno not in FULL:
            return _defect(ctx)
        message = f"no space left on the disk under {ctx.state.root}: free some, then run again"
        return ctx.outcome("failed", "StorageFull", message)
    except Exception:
        return _defect(ctx)


def _defect(ctx: StageContext) -> Outcome:
    error = traceback.format_exc()
    log.error("%s", error)
    return ctx.outcome("failed", "Defect", error.strip().splitlines()[-1][:1000] + " (the traceback is in the log)")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = parser().parse_args(argv)
    raise_open_files()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every batch of tool calls
    state = JobState(arguments.state.resolve())
    job = state.job()
    stage = job.stage(arguments.stage)
    tracker = Tracker.of(job, state.root)
    endpoints = Endpoints(
        engines=tuple(arguments.engine),
        engine_service=arguments.engines,
        judge=arguments.judge,
        ray=arguments.ray,
    )
    return asyncio.run(_run(StageContext(job, stage, arguments.attempt, state, endpoints, tracker)))


async def _run(ctx: StageContext) -> int:
    job, stage, tracker = ctx.job, ctx.stage, ctx.tracker
    ctx.watch_signals()
    member = getattr(stage, stage.type.lower())
    settings = job.grpo_settings(stage) if stage.type == "GRPO" else member
    tracker.start_stage(stage.name, type=stage.type, attempt=ctx.attempt, params=settings.model_dump(by_alias=True))
    ctx.report(phase="Starting", total_steps=job.total_steps(stage))
    outcome = await drive(ctx)
    tracker.end_stage(stage.name, outcome.outcome, reason=outcome.reason)
    tracker.close()
    if outcome.reason == "StaleAttempt":  # the newer attempt's files are not ours to write
        return ExitCode.RETRYABLE
    write_model(ctx.folder.outcome_file, outcome)
    if outcome.ended_well:
        shutil.rmtree(ctx.folder.samples, ignore_errors=True)  # what another attempt would have gone on from
    ctx.report(phase="Finished")
    log.info("%s: %s (%s) %s", stage.name, outcome.outcome, outcome.reason, outcome.message)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
