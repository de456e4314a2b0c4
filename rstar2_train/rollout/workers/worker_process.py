"""One rollout worker in the orchestrator: its process, its slots, and its unfinished rollouts.

A worker that dies is started again. Its slots are released, and the new process runs its unfinished rollouts again with
the same seeds. A rollout whose result has arrived is finished, and never runs again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from rstar2_train.data.problems import Problem
from rstar2_train.inference.admission import AdmissionQueue, EngineSlot
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.pool import EnginePool
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.rollout.workers.link import WorkerLink
from rstar2_train.rollout.workers.messages import (
    EngineFailed,
    KnownVersions,
    LagMeasured,
    PromptAdded,
    RolloutFailed,
    RolloutFinished,
    RolloutStarted,
    SetClosed,
    SetOpened,
    SlotAssigned,
    SlotFailed,
    SlotMoved,
    SlotReleased,
    SlotRequested,
    SlotUnassigned,
    ToOrchestrator,
    ToWorker,
    TurnStarted,
    TurnStarting,
    VersionKnown,
    VersionPushed,
    WorkerSetup,
)
from rstar2_train.utils.loop_lag import LagSamples
from rstar2_train.utils.supervisor import describe_exit

log = logging.getLogger(__name__)

SILENT_SECONDS = 180.0
"""Time without a message after which a worker counts as hung, and is killed. It sends one per second."""
STOP_SECONDS = 5.0
MAX_DEATHS = 5
"""Deaths of one worker within `DEATH_SECONDS` before the rollouts fail."""
DEATH_SECONDS = 600.0
PROGRAM = "rstar2_train.rollout.workers.worker"


class WorkerLost(Exception):
    """A rollout worker keeps dying."""


class HostedSlot(EngineSlot):
    """The slot of a trajectory in a worker: what the scheduler decides is sent there."""

    __slots__ = ("_engine", "_number", "_send")

    def __init__(self, queue: AdmissionQueue, number: int, send: Callable[[ToWorker], None]) -> None:
        super().__init__(queue)
        self._number = number
        self._send = send
        self._engine = ""

    def assign(self, engine: str) -> None:
        """Let the trajectory run in an engine."""
        self._engine = engine
        self._send(SlotAssigned(self._number, engine))

    def unassign(self) -> None:
        """Cancel the request: the engine is lost, or the policy moves the trajectory away."""
        self._send(SlotUnassigned(self._number, self.is_displaced))
        self.is_displaced = False

    def move(self, engine: str) -> None:
        """Let the turn that starts now run in another engine."""
        if engine != self._engine:
            self._engine = engine
            self._send(SlotMoved(self._number, engine))

    def fail(self, error: Exception) -> None:
        """Raise an error in a wait for an engine."""
        self._send(SlotFailed(self._number, str(error)))


@dataclass(slots=True)
class _SentSet:
    opened: SetOpened
    prompts: dict[str, PromptAdded] = field(default_factory=dict)
    """Sent prompts, by id."""


@dataclass(slots=True)
class _Rollout:
    message: RolloutStarted
    future: asyncio.Future[Trajectory]


class WorkerProcess:
    """One worker. Use as `async with`; entering it starts the process and does not wait for it."""

    def __init__(self, name: str, pool: EnginePool, setup: WorkerSetup) -> None:
        """`pool`: engines that the slots of the worker use."""
        self.name = name
        self.lag = LagSamples()
        self.pid: int | None = None
        """Process id; None while none runs."""
        self._pool = pool
        self._setup = setup
        self._known = KnownVersions(pool.version, dict(pool.push_numbers))
        self._link: WorkerLink | None = None
        self._numbers = itertools.count()
        self._sets: dict[int, _SentSet] = {}
        self._rollouts: dict[int, _Rollout] = {}
        self._slots: dict[int, HostedSlot] = {}
        self._announced: dict[int, asyncio.Future[None]] = {}
        """Versions that the worker has not confirmed yet, by number."""
        self._deaths: list[float] = []
        self._failure: Exception | None = None
        self._closing = False

    async def __aenter__(self) -> WorkerProcess:
        self._running = asyncio.create_task(self._keep_running())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        if self._link is None:
            self._running.cancel()
        else:
            self._link.close()
        await asyncio.gather(self._running, return_exceptions=True)

    @property
    def unfinished(self) -> int:
        """Number of rollouts that it runs, or that wait in it for an engine."""
        return len(self._rollouts)

    def open_set(self, opened: SetOpened) -> None:
        """Add a set of rollouts."""
        self._sets[opened.number] = _SentSet(opened)
        self._send(opened)

    def close_set(self, number: int) -> None:
        """Stop the rollouts of a set."""
        del self._sets[number]
        for key in [key for key, rollout in self._rollouts.items() if rollout.message.set == number]:
            self._rollouts.pop(key).future.cancel()
        self._send(SetClosed(number))

    async def run(self, number: int, problem: Problem, prompt_ids: array[int], sample: int) -> Trajectory:
        """Run a rollout of a set and return it. Raises its error, and WorkerLost."""
        if self._failure is not None:
            raise self._failure
        prompts = self._sets[number].prompts
        if problem.id not in prompts:
            prompts[problem.id] = PromptAdded(number, problem, prompt_ids)
            self._send(prompts[problem.id])
        message = RolloutStarted(next(self._numbers), number, problem.id, sample)
        future: asyncio.Future[Trajectory] = asyncio.get_running_loop().create_future()
        self._rollouts[message.number] = _Rollout(message, future)
        self._send(message)
        trajectory = await future
        trajectory.prompt_ids = prompt_ids  # shared by the group
        return trajectory

    async def announce(self, version: str, number: int) -> None:
        """Report a version that is about to be pushed; return when the worker accepts its tokens, or is dead."""
        self._known = KnownVersions(version, {**self._known.numbers, version: number})
        if self._link is None:
            return
        self._announced[number] = confirmed = asyncio.get_running_loop().create_future()
        self._send(VersionPushed(version, number))
        await confirmed

    def _send(self, message: ToWorker) -> None:
        if self._link is not None:
            self._link.send(message)

    async def _keep_running(self) -> None:
        """Run the process, again after each death, until the end. An error is that of all rollouts."""
        try:
            while not self._closing:
                await self._run_process()
        except Exception as error:
            self._failure = error
            for rollout in self._rollouts.values():
                if not rollout.future.done():
                    rollout.future.set_exception(error)
            self._rollouts.clear()

    async def _run_process(self) -> None:
        """Run the process until it exits. Raises WorkerLost if it has died too often."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", PROGRAM, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self.pid = process.pid
        self._link = link = await WorkerLink.open(ours)
        try:
            self._resume()
            await self._serve(link)
        except TimeoutError:
            log.error("rollout worker %s sent nothing for %.0f s; it is killed", self.name, SILENT_SECONDS)
            process.kill()
        finally:
            self._link = None
            link.close()
            self._release()
            code = await _stopped(process, grace=STOP_SECONDS)
            self.pid = None
        if not self._closing:
            self._note_death(describe_exit(code))

    def _resume(self) -> None:
        """Send a new process all that it needs to run the unfinished rollouts."""
        self._send(self._setup)
        self._send(self._known)
        for rollouts in self._sets.values():
            self._send(rollouts.opened)
            for prompt in rollouts.prompts.values():
                self._send(prompt)
        for rollout in self._rollouts.values():
            self._send(rollout.message)

    async def _serve(self, link: WorkerLink) -> None:
        """Handle the messages of the process until it closes the link. Raises TimeoutError if it is silent."""
        while True:
            async with asyncio.timeout(SILENT_SECONDS):
                message = await link.receive()
            if message is None:
                return
            await self._handle(message)

    async def _handle(self, message: ToOrchestrator) -> None:
        admission = self._pool.admission
        match message:
            case SlotRequested(number, tokens, prompt_tokens, group):
                slot = self._slots[number] = HostedSlot(admission, number, self._send)
                admission.submit(slot, tokens=tokens, prompt_tokens=prompt_tokens, group=group)
            case TurnStarting(number, context):
                await admission.start_turn(self._slots[number], context)
                self._send(TurnStarted(number))
            case SlotReleased(number, length):
                admission.release(self._slots.pop(number), tokens=length)
            case EngineFailed(engine, error):
                self._pool.mark_failed(engine, EngineUnavailable(error))
            case RolloutFinished(number, trajectory):
                if (rollout := self._rollouts.pop(number, None)) and not rollout.future.done():
                    rollout.future.set_result(trajectory)
            case RolloutFailed(number, failure):
                if (rollout := self._rollouts.pop(number, None)) and not rollout.future.done():
                    rollout.future.set_exception(failure)
            case VersionKnown(number):
                self._confirm(number)
            case LagMeasured(samples):
                self.lag.extend(samples)

    def _confirm(self, number: int) -> None:
        confirmed = self._announced.pop(number, None)
        if confirmed is not None and not confirmed.done():
            confirmed.set_result(None)

    def _release(self) -> None:
        """Release what the dead process held."""
        for slot in self._slots.values():
            self._pool.admission.release(slot)
        self._slots.clear()
        for number in list(self._announced):
            self._confirm(number)

    def _note_death(self, event: str) -> None:
        now = time.monotonic()
        self._deaths = [*(death for death in self._deaths if now - death < DEATH_SECONDS), now]
        if len(self._deaths) <= MAX_DEATHS:
            log.warning(
                "rollout worker %s %s; its %d unfinished rollouts run again in a new process",
                self.name, event, len(self._rollouts),
            )  # fmt: skip
            return
        raise WorkerLost(
            f"rollout worker {self.name} died {len(self._deaths)} times in {DEATH_SECONDS:.0f} s; the last time it "
            f"{event}. Read its messages in this log; if it was killed by SIGKILL, give the trainer pod more memory"
        )


async def _stopped(process: asyncio.subprocess.Process, *, grace: float) -> int:
    """Return the exit code of a process, which is killed after `grace` seconds."""
    try:
        async with asyncio.timeout(grace):
            return await process.wait()
    except TimeoutError:
        if process.returncode is None:
            process.kill()
        return await process.wait()
