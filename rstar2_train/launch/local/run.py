"""`rstar2 run`: the whole curriculum of a manifest on this machine, with the components that a cluster would run.

Starts what the next stage needs, runs one driver after another, applies the failure policy, and stops everything at
the end. All state is under one folder, so that the same command goes on where the last one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from rstar2_train.api.contracts import ExitCode, Outcome
from rstar2_train.api.failure_policy import FailureDecision, after_attempt
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.evaluation.job_report import JobReport, build_report, slice_table, stage_table, write_report
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.services import Ports, Services, start_engines, start_judge
from rstar2_train.launch.local.terminal_view import watch
from rstar2_train.tracking import shipper
from rstar2_train.tracking.tracker import Ending, Tracker, ui_command
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.supervisor import Child, ChildFailed, Supervisor, end_leftovers
from rstar2_train.utils.terminal import ending_signals

log = logging.getLogger(__name__)

DISK_SECONDS = 2.0
"""Between two looks at the free disk."""
LAST_METRICS_SECONDS = 20.0
"""How long the end of a run waits for a tracking server; what is unsent stays in the journal."""


def run(manifest: Path, *, state_root: Path, console: Console) -> int:
    """Run a manifest to its end; returns the exit code. Prints what a person needs to know."""
    job, warnings = preflight.read_job(manifest)
    for warning in warnings:
        console.print(str(warning), style="yellow", highlight=False, markup=False)
    state = JobState((state_root / job.metadata.name).resolve())
    with preflight.locked(state):
        preflight.check_machine(job.spec.executor, state)
        end_leftovers(state.children_file)
        if any(stage for stage in job.spec.stages if not state.stage(stage.name).done):
            console.print("preparing data and base model ...", style="dim")
        resolved = preflight.resolve_sources(job, manifest=manifest, state=state)
        resolved, notes = preflight.write_job(resolved, manifest=manifest, state=state)
        for note in notes:
            console.print(note, style="yellow", highlight=False, markup=False)
        code = asyncio.run(_LocalRun(resolved, state, console).main())
    return code


class _LocalRun:
    """One run of a job on this machine."""

    def __init__(self, job: AgenticRLJob, state: JobState, console: Console) -> None:
        self._job = job
        self._state = state
        self._console = console
        self._began = time.time()
        self._earlier_seconds = state.seconds()
        self._restarts = 0
        self._why_failed = ""

    async def main(self) -> int:
        """Run what is left of the curriculum, then report."""
        left = [stage for stage in self._job.spec.stages if not self._state.stage(stage.name).done]
        ending: Ending = "completed"
        if left:
            ending = await self._supervised(left)
        else:
            self._console.print(f"{self._job.metadata.name} is already complete", style="green")
        self._write_seconds()
        report = build_report(self._state.root, self._job, seconds=self._seconds)
        path = write_report(self._state.root, report)
        self._conclude(ending, report, path)
        return {"completed": ExitCode.DONE, "suspended": ExitCode.SUSPENDED}.get(ending, 1)

    # -- the children -----------------------------------------------------------------------------------------------

    async def _supervised(self, left: list[Stage]) -> Ending:
        job, state = self._job, self._state
        self._supervisor = Supervisor(logs=state.logs, register=state.children_file, say=self._say)
        self._services = Services(job.spec.executor, state, Ports.choose(engines=job.spec.rollout.replicas))
        self._stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for signum in ending_signals():
            loop.add_signal_handler(signum, self._asked_to_stop)
        tracker = Tracker.for_job(job, state.root)
        tracker.start_job(job.spec.model_dump(by_alias=True, exclude={"stages"}, exclude_none=True))
        tracker.log_artifact("", state.manifest_file)
        shown = asyncio.Event()
        view = asyncio.create_task(
            watch(state, stop=shown, health=self._supervisor.health, console=self._console, started=self._began)
        )
        ending: Ending = "failed"
        try:
            await self._supervisor.start(self._services.shipper())
            ending = await self._until_end(left)
        except ChildFailed as error:
            self._why_failed = str(error)
        finally:
            shown.set()
            await view
            await self._close(tracker, ending)
        return ending

    def _say(self, words: str) -> None:
        self._console.print(words, style="yellow", highlight=False, markup=False)

    def _asked_to_stop(self) -> None:
        """The first time: suspend. The second: do not wait for the step; what is checkpointed is safe."""
        if self._stop.is_set():
            self._signal_driver(signal.SIGKILL)
        else:
            self._say("suspending: the driver writes its checkpoint (again: do not wait for it)")
        self._stop.set()

    async def _until_end(self, left: list[Stage]) -> Ending:
        """Run the stages; a child that keeps dying, or a request to stop, ends them early."""
        stages = asyncio.create_task(self._stages(left))
        stop = asyncio.create_task(self._stop.wait())
        disk = asyncio.create_task(self._watch_disk())
        given_up = self._supervisor.given_up
        ends: set[asyncio.Future[Any]] = {stages, stop, given_up}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if given_up.done():
            self._stop.set()  # the driver checkpoints; the stages end as suspended
        if not stages.done():
            self._signal_driver(signal.SIGTERM)
        ending = await stages
        stop.cancel()
        disk.cancel()
        if given_up.done():
            raise given_up.result()
        return ending

    async def _watch_disk(self) -> None:
        """Give the run up before the disk is full: Redis would take no call any more, and everything wait for it."""
        while True:
            if why := preflight.too_little_disk(self._state, wanted=preflight.LOW_BYTES):
                words = f"{why}, then run the same command again: it goes on where it stopped"
                self._supervisor.give_up(ChildFailed(words))
                return
            await asyncio.sleep(DISK_SECONDS)

    def _signal_driver(self, signum: signal.Signals) -> None:
        for name in self._supervisor.health():
            if name.startswith("driver-"):
                self._supervisor.signal(name, signum)

    async def _stages(self, left: list[Stage]) -> Ending:
        serving: asyncio.Task[None] | None = None
        if any(stage.needs_engines for stage in left):
            serving = asyncio.create_task(self._serve())  # engines boot while SFT trains
        try:
            for stage in left:
                if serving is not None and stage.needs_engines:
                    waiting = [name for name, word in self._supervisor.health().items() if word == "starting"]
                    if not serving.done():
                        self._say(f"{stage.name} waits for {', '.join(waiting) or 'its services'} to start")
                    await self._interruptible(serving)
                    if self._stop.is_set():
                        break
                ending = await self._one_stage(stage)
                if ending != "completed":
                    return ending
            return "suspended" if self._stop.is_set() else "completed"
        finally:
            if serving is not None and not serving.done():
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    async def _interruptible(self, serving: asyncio.Task[None]) -> None:
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _serve(self) -> None:
        """Start everything that sampling needs. What cannot be started is a child given up, which ends the run."""
        services, supervisor = self._services, self._supervisor
        source = Path(self._job.spec.model.source)
        try:
            await asyncio.gather(start_judge(services, supervisor), start_engines(services, supervisor, source))
        except ChildFailed as error:
            supervisor.give_up(error)

    # -- stages -----------------------------------------------------------------------------------------------------

    async def _one_stage(self, stage: Stage) -> Ending:
        """Attempts of one stage, until it is done, suspended or given up."""
        while not self._stop.is_set():
            attempt = preflight.next_attempt(self._job, self._state, stage.name)
            child: Child = self._services.driver(stage, attempt)
            code = await self._supervisor.run(child)
            decision = self._decide(stage, attempt, code)
            if decision.action == "NextStage":
                return "completed"
            if decision.action == "Suspend":
                return "suspended"
            if self._stop.is_set() and decision.action == "RestartStage":
                return "suspended"  # it was told not to wait
            where = self._supervisor.ending(child.name, f"stage {stage.name}, attempt {attempt}: {decision.why}")
            if decision.action == "FailJob":
                self._why_failed = where
                return "failed"
            self._restarts += decision.counts
            self._say(f"{where}\nstarting it again from its last checkpoint")
        return "suspended"

    def _decide(self, stage: Stage, attempt: int, code: int) -> FailureDecision:
        outcome: Outcome | None = self._state.stage(stage.name).outcome()
        if outcome is not None and outcome.attempt != attempt:
            outcome = None  # an earlier attempt's
        return after_attempt(
            exit_code=code,
            outcome=outcome,
            policy=self._job.spec.failure_policy,
            counted_restarts=self._restarts,
        )

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _close(self, tracker: Tracker, ending: Ending) -> None:
        """Stop the children; give the tracking server a moment to take the last metrics."""
        self._write_seconds()
        report = build_report(self._state.root, self._job, seconds=self._seconds)
        tracker.log_artifact("", write_report(self._state.root, report))
        tracker.end_job(ending)
        tracker.close()
        others = [name for name in self._supervisor.health() if name != "tracking"]
        await self._supervisor.stop(*others)
        await asyncio.to_thread(_wait_for_metrics, self._state.root)
        await self._supervisor.stop()

    def _conclude(self, ending: Ending, report: JobReport, path: Path) -> None:
        console, state = self._console, self._state
        console.print()
        console.print(stage_table(report, width=console.width))
        slices = slice_table(report)
        if slices is not None:
            console.print(slices)
        shipped = shipper.progress(state.root)
        if not shipped.complete:
            console.print(
                f"MLflow has not taken everything yet ({shipped.error or 'still sending'}); nothing is lost: "
                f"`rstar2 track {self._job.metadata.name}` sends the rest",
                style="yellow",
                markup=False,
            )
        if shipped.rejection_message:
            console.print(shipped.rejection_message, style="yellow", markup=False)
        console.print(f"report   {_shown(path)}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"logs     {_shown(state.logs)}", highlight=False, markup=False, soft_wrap=True)
        console.print(f"metrics  {ui_command(state.root)}", highlight=False, markup=False, soft_wrap=True)
        if ending == "suspended":
            self._say("suspended; the same command goes on where it stopped")
        if ending == "failed":
            excerpt, _, why = self._why_failed.rpartition("\n")
            console.print(excerpt, markup=False, highlight=False, soft_wrap=True)
            console.print(f"FAILED: {why}", style="red", markup=False, highlight=False, soft_wrap=True)

    @property
    def _seconds(self) -> float:
        return self._earlier_seconds + time.time() - self._began

    def _write_seconds(self) -> None:
        write_atomically(self._state.seconds_file, json.dumps(self._seconds))


def _wait_for_metrics(state: Path) -> None:
    deadline = time.monotonic() + LAST_METRICS_SECONDS
    while not shipper.progress(state).complete and time.monotonic() < deadline:
        time.sleep(0.1)


def _shown(path: Path) -> str:
    """A path as short as it can be for someone in the current folder."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def add_tools_to_path() -> None:
    """Find the tools that set-up put beside the interpreter (runsc), also when the environment is not activated."""
    tools = str(Path(sys.executable).parent)
    if tools not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
