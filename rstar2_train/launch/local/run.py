"""`rstar2 run`: the curriculum of a manifest on this machine, with the processes that a cluster would run.

Starts what the next stage needs, runs one orchestrator per stage attempt, applies the failure policy, and stops every
process at the end. All state is in one folder, so that the same command resumes where the last one stopped. `rstar2
eval` and `rstar2 filter` run a job of one stage (`launch/evaluation/measure.py`).

    run -> preflight (manifest, machine, sources) -> LocalRun.main
             |- Supervisor: redis, judge-api, judge-worker, engine-N, tracking      (services.py)
             |- one orchestrator per attempt -> failure policy -> next attempt or next stage
             `- RunView: progress, then the report           (run_view.py)
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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rstar2_train.api.contracts import ExitCode, Outcome
from rstar2_train.api.failure_policy import CountedRestarts, FailureDecision, after_attempt
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import Stage
from rstar2_train.api.state_dir import JobState
from rstar2_train.evaluation.job_report import JobReport, build_report, write_report
from rstar2_train.launch.local import preflight
from rstar2_train.launch.local.devices import DeviceAssignment
from rstar2_train.launch.local.run_view import RunView
from rstar2_train.launch.local.services import NONE_RUNNING, RunningServices, Services
from rstar2_train.launch.local.upload import check, open_upload
from rstar2_train.launch.state_upload import StateUpload
from rstar2_train.tracking import shipper
from rstar2_train.tracking.tracker import Ending, Tracker, ui_command
from rstar2_train.utils.disk import disk_shortage
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.leftovers import stop_leftovers
from rstar2_train.utils.supervisor import Child, ChildFailed, Supervisor, gather_or_cancel

log = logging.getLogger(__name__)

DISK_SECONDS = 2.0
"""Interval of the checks of free disk space."""
LAST_METRICS_SECONDS = 20.0
"""How long the end of a run waits for the tracking server. Metrics that were not sent stay in the journal."""


def run(manifest: Path, *, state_root: Path, view: RunView) -> int:
    """Run a manifest to its end and return the exit code. Raises PreflightError.

    `state_root`: folder of the state folders of all jobs.
    """
    job, warnings, text = preflight.read_job_and_text(manifest)
    warn = partial(view.print_line, tone="warning")
    for warning in warnings:
        warn(str(warning))
    state = JobState((state_root / job.metadata.name).resolve())
    with preflight.locked(state):
        upload = open_upload(job, state, warn=warn)
        packages = prepare_machine(job, state, view)
        if _pending(job, state):
            view.print_line("Preparing data and base model ...", "progress")
        resolved = preflight.resolve_sources(job, manifest=manifest, state=state)
        resolved, notes = preflight.write_job(resolved, manifest=text, state=state)
        local = LocalRun(
            resolved, state, view, packages=packages, title=f"rstar2 run: {job.metadata.name}", upload=upload
        )
        for note in (*notes, *local.notes):
            warn(note)
        check(upload)
        if not _pending(resolved, state):
            view.print_line(f"Job {job.metadata.name} is already complete.", "success")
        end = asyncio.run(local.main())
        unpublished = upload.finish() if upload is not None else ""
        _conclude(end, resolved, state, view)
        if unpublished:
            view.print_line(f"FAILED: {unpublished}", "failure")
            return 1
        return {"completed": ExitCode.DONE, "suspended": ExitCode.SUSPENDED}.get(end.ending, 1)


def prepare_machine(
    job: AgenticRLJob, state: JobState, view: RunView, *, running: RunningServices = NONE_RUNNING
) -> Path | None:
    """Check the machine, install the sandbox's packages, and stop processes that a killed run left behind.

    Returns the folder of the packages; None without packages. Raises PreflightError.
    """
    starts_judge = job.spec.needs_judge and not running.judge
    preflight.check_machine(job.spec.executor if starts_judge else None, state)
    packages = None
    if job.spec.judge.packages and starts_judge:
        view.print_line("Preparing the packages of the sandbox ...", "progress")
        packages = preflight.prepare_packages(job.spec.judge, state)
    stop_leftovers(state.children_file)
    return packages


@dataclass(frozen=True)
class RunEnd:
    """The end of a run."""

    ending: Ending
    report: JobReport
    failure: str = ""
    """End of the log of the failed process, then one line with the cause."""
    outcome: Outcome | None = None
    """Outcome of the last attempt; None if it has none."""


class LocalRun:
    """One run of a job on this machine. The caller has locked the state folder."""

    def __init__(
        self,
        job: AgenticRLJob,
        state: JobState,
        view: RunView,
        *,
        packages: Path | None,
        title: str,
        running: RunningServices = NONE_RUNNING,
        orchestrator_options: Sequence[str] = (),
        ships: bool = True,
        upload: StateUpload | None = None,
    ) -> None:
        """Choose devices and ports. Raises PreflightError if the devices do not suffice.

        `packages`: folder of the sandbox's packages. `title`: of the progress. `orchestrator_options`: added to
        the command line of each orchestrator. `ships`: whether the journal is sent to MLflow. `upload`: publishes the
        state to a bucket; None: the folder is the only copy.
        """
        self._job = job
        self._state = state
        self._view = view
        self._title = title
        self._options = orchestrator_options
        self._ships = ships
        self._upload = upload
        self._started = time.time()
        self._earlier_seconds = state.seconds()
        self._restarts = CountedRestarts()
        self._failure = ""
        self._outcome: Outcome | None = None
        self._devices = DeviceAssignment()
        if not running.engine:
            self._devices = preflight.assign_devices(job, pending=_pending(job, state))
        self._services = Services.create(
            job.spec.executor,
            state,
            engines=job.spec.rollout.replicas,
            devices=self._devices,
            packages=packages,
            environments=job.spec.environments,
            teachers=job.spec.teacher.replicas if job.spec.teacher is not None else 0,
            running=running,
        )

    @property
    def notes(self) -> list[str]:
        """Notes for the user about the use of the devices."""
        sentence = self._devices.shared_use()
        return [sentence] if sentence else []

    async def main(self) -> RunEnd:
        """Run the stages that are not done, and write the job's report."""
        pending = _pending(self._job, self._state)
        ending: Ending = "completed"
        if pending:
            ending = await self._run_pending(pending)
        self._write_seconds()
        report = build_report(self._state.root, self._job, seconds=self._seconds)
        file = write_report(self._state.root, report)
        if not pending:
            await asyncio.to_thread(self._end_open_run, file)
        return RunEnd(ending, report, self._failure, self._outcome)

    # -- processes --------------------------------------------------------------------------------------------------

    async def _run_pending(self, pending: list[Stage]) -> Ending:
        job, state = self._job, self._state
        self._stop = asyncio.Event()
        async with Supervisor(logs=state.logs, register=state.children_file, notify=self._warn) as supervisor:
            self._supervisor = supervisor
            tracker = Tracker.for_job(job, state.root)
            tracker.start_job(job.spec.model_dump(by_alias=True, exclude={"stages"}, exclude_none=True))
            tracker.log_artifact("", state.manifest_file)
            view_stop = asyncio.Event()
            following = asyncio.create_task(
                self._view.follow(state, title=self._title, started=self._started, health=self._health, stop=view_stop)
            )
            ending: Ending = "failed"
            try:
                ending = await supervisor.run_until_stopped(self._run_stages(pending), on_stop=self._on_stop)
            except ChildFailed as error:
                self._failure = str(error)
            finally:
                view_stop.set()
                await following
                await self._close(tracker, ending)
        return ending

    def _health(self) -> dict[str, str]:
        return self._supervisor.health() | (self._upload.health() if self._upload is not None else {})

    def _warn(self, message: str) -> None:
        self._view.print_line(message, "warning")

    def _on_stop(self) -> None:
        """Suspend on the first request; kill the orchestrator on the second. Its last checkpoint is on disk."""
        if self._stop.is_set():
            self._signal_orchestrator(signal.SIGKILL)
        else:
            self._warn("Suspending: saving the state. Press Ctrl-C again to stop without waiting.")
            self._stop.set()
            self._signal_orchestrator(signal.SIGTERM)

    def _signal_orchestrator(self, signum: signal.Signals) -> None:
        for name in self._supervisor.health():
            if name.startswith("orchestrator-"):
                self._supervisor.signal(name, signum)

    async def _watch_disk(self) -> None:
        """Fail the run before the disk is full: Redis would reject every call, and the run would hang."""
        while True:
            if shortage := disk_shortage(self._state.root, needed=preflight.LOW_BYTES):
                self._supervisor.fail(ChildFailed(f"{shortage}, then run the same command again to resume"))
                return
            await asyncio.sleep(DISK_SECONDS)

    # -- stages -----------------------------------------------------------------------------------------------------

    async def _run_stages(self, pending: list[Stage]) -> Ending:
        job, background = self._job, [asyncio.create_task(self._watch_disk())]
        if self._upload is not None:
            background.append(asyncio.create_task(self._upload.follow(self._supervisor.fail)))
        try:
            if self._ships:
                await self._supervisor.start(self._services.shipper())
            starting: asyncio.Task[None] | None = None
            if any(stage.needs_engines for stage in pending):
                starting = asyncio.create_task(self._start_services())  # engines load while SFT trains
                background.append(starting)
            for stage in pending:
                # On a device that they share by time-sharing, an engine cannot start while a stage trains.
                if starting is not None and (stage.needs_engines or self._devices.time_shared):
                    await self._wait_for_services(stage, starting)
                    if self._stop.is_set():
                        break
                async with self._services.teacher(self._supervisor, stage, job.served_teacher(stage)):
                    ending = await self._run_stage(stage)
                if ending != "completed":
                    return ending
            return "suspended" if self._stop.is_set() else "completed"
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    async def _start_services(self) -> None:
        """Start what stages that sample need. A child that does not start fails the run."""
        services, supervisor = self._services, self._supervisor
        source = Path(self._job.spec.model.source)
        starts_judge = self._job.spec.needs_judge and not services.running.judge
        try:
            await gather_or_cancel(
                *([services.judge.start(supervisor)] if starts_judge else []),
                services.start_engines(supervisor, source),
                services.start_environment(supervisor),
            )
        except ChildFailed as error:
            supervisor.fail(error)

    async def _wait_for_services(self, stage: Stage, starting: asyncio.Task[None]) -> None:
        """Wait until judge and engines are ready, or the run must stop."""
        if not starting.done():
            names = [name for name, state in self._supervisor.health().items() if state == "starting"]
            self._warn(f"Stage {stage.name} waits for {', '.join(names) or 'its services'} to start.")
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _run_stage(self, stage: Stage) -> Ending:
        """Run attempts of one stage until it is done, suspended or failed."""
        while not self._stop.is_set():
            attempt = preflight.next_attempt(self._job, self._state, stage.name)
            child: Child = self._services.orchestrator(stage, attempt, *self._options)
            code = await self._supervisor.run(child)
            decision = self._decide(stage, attempt, code)
            if decision.action == "NextStage":
                return "completed"
            if decision.action == "Suspend":
                return "suspended"
            if self._stop.is_set() and decision.action == "RestartStage":
                return "suspended"  # the second Ctrl-C killed it
            message = f"Stage {stage.name}, attempt {attempt}: {decision.reason}"
            excerpt = self._supervisor.log_excerpt(child.name, message)
            if decision.action == "FailJob":
                self._failure = excerpt
                return "failed"
            if decision.counts:
                self._restarts = self._restarts.plus_one(time.time())
            self._warn(f"{excerpt}\nRestarting the stage from its last checkpoint.")
        return "suspended"

    def _decide(self, stage: Stage, attempt: int, code: int) -> FailureDecision:
        outcome: Outcome | None = self._state.stage(stage.name).outcome()
        if outcome is not None and outcome.attempt != attempt:
            outcome = None  # of an earlier attempt
        self._outcome = outcome
        policy = self._job.spec.failure_policy
        self._restarts = self._restarts.at(time.time(), policy)
        return after_attempt(exit_code=code, outcome=outcome, policy=policy, counted_restarts=self._restarts.number)

    # -- end --------------------------------------------------------------------------------------------------------

    def _end_open_run(self, report: Path) -> None:
        """End the MLflow run of a complete job, which a launcher that was killed after the last stage left open."""
        tracker = Tracker.for_job(self._job, self._state.root)
        if tracker.is_open():
            tracker.log_artifact("", report)
            tracker.end_job("completed")
            if self._ships:
                shipper.ship(self._state.root, timeout=LAST_METRICS_SECONDS)
        tracker.close()

    async def _close(self, tracker: Tracker, ending: Ending) -> None:
        """Stop the children; the tracking child stops last, after it has sent the last metrics."""
        self._write_seconds()
        report = build_report(self._state.root, self._job, seconds=self._seconds)
        tracker.log_artifact("", write_report(self._state.root, report))
        tracker.end_job(ending)
        tracker.close()
        others = [name for name in self._supervisor.health() if name != "tracking"]
        await self._supervisor.stop(*others)
        if self._ships:
            await asyncio.to_thread(_wait_for_metrics, self._state.root)

    @property
    def _seconds(self) -> float:
        return self._earlier_seconds + time.time() - self._started

    def _write_seconds(self) -> None:
        write_atomically(self._state.seconds_file, json.dumps(self._seconds))


def _conclude(end: RunEnd, job: AgenticRLJob, state: JobState, view: RunView) -> None:
    """Print the report, its files, and the cause of a failure."""
    view.print_report(end.report)
    shipped = shipper.progress(state.root)
    if not shipped.complete:
        view.print_line(
            f"MLflow does not have all metrics yet ({shipped.error or 'still sending'}). They are saved: "
            f"`rstar2 track {job.metadata.name}` sends the rest.",
            "warning",
        )
    if shipped.rejection_message:
        view.print_line(shipped.rejection_message, "warning")
    view.print_line(f"report   {_relative(state.report_file)}")
    view.print_line(f"logs     {_relative(state.logs)}")
    view.print_line(f"metrics  {ui_command(state.root)}")
    if end.ending == "suspended":
        view.print_line("Suspended. Run the same command to resume.", "warning")
    if end.ending == "failed":
        excerpt, _, cause = end.failure.rpartition("\n")
        view.print_line(excerpt)
        view.print_line(f"FAILED: {cause}", "failure")


def _pending(job: AgenticRLJob, state: JobState) -> list[Stage]:
    """Return the stages that are not done."""
    return [stage for stage in job.spec.stages if not state.stage(stage.name).done]


def _wait_for_metrics(state: Path) -> None:
    deadline = time.monotonic() + LAST_METRICS_SECONDS
    while not shipper.progress(state).complete and time.monotonic() < deadline:
        time.sleep(0.1)


def _relative(path: Path) -> str:
    """Return the path relative to the current folder if it is inside it."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def add_tools_to_path() -> None:
    """Add the interpreter's folder to PATH: `make setup` installs runsc there, and the venv may not be activated."""
    tools = str(Path(sys.executable).parent)
    if tools not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
