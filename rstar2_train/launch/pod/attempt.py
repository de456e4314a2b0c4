"""A pod of a stage attempt: index 0 runs the driver, and with it Ray's head; every other index gives Ray a node.

Index 0 takes the attempt (attempt.json), starts Ray where the attempt has several pods, runs the driver and the MLflow
shipper, mirrors what the driver writes, and ends with the driver's exit code. It is the container's first process:
when it ends everything ends with it, and Ray is never stopped in order, which would have the others end too early.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.api.contracts import AttemptRecord, ExitCode, Outcome, Reason, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState, StageState, read_attempt
from rstar2_train.launch.pod import ray_cluster
from rstar2_train.launch.pod.progress_config_map import ACCOUNT, ProgressConfigMap
from rstar2_train.launch.pod.progress_mirror import TERMINATION_LOG, ProgressMirror, to_json, write_termination_message
from rstar2_train.launch.pod.ray_cluster import RayCluster, reachable
from rstar2_train.tracking import shipper
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.utils.dns import resolve_addresses, split_address
from rstar2_train.utils.supervisor import die_with_parent

log = logging.getLogger("rstar2.cluster")

LOOK_SECONDS = 1.0
RAY_PORT = 6379
JOIN_TRIES = 6
"""A head or node that ended is started again so often: on a busy machine Ray gives up on itself within seconds. Once
the driver runs it finds by itself that ranks were lost.
"""
AFTERMATH_SECONDS = 15.0
"""A node whose Ray died first looks for so long whether the head has ended too: then it is no failure of the node."""


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """What a pod was told."""

    job_file: Path
    state: Path
    stage: str
    attempt: int
    nodes: int
    subdomain: str
    engines: str = ""
    judge: str = ""
    progress: str = ""
    """Name of the ConfigMap; empty: nobody is told."""
    ray_port: int = RAY_PORT
    head: str = ""
    """Host of index 0; empty: by this pod's host name and the subdomain."""
    account: Path = ACCOUNT
    termination_log: Path = TERMINATION_LOG


async def launch(told: AttemptOptions, *, index: int) -> int:
    """Run this pod to its end; returns its exit code."""
    job = AgenticRLJob.model_validate_json(told.job_file.read_text(encoding="utf-8"))
    pod = _TrainerPod(told, job)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, pod.stopping.set)
    return await (pod.lead() if index == 0 else pod.serve())


class _TrainerPod:
    """One pod of an attempt."""

    def __init__(self, told: AttemptOptions, job: AgenticRLJob) -> None:
        self._told = told
        self._job = job
        self._stage = job.stage(told.stage)
        self._attempt = AttemptRecord(attempt=told.attempt, uid=job.metadata.uid)
        self._state = JobState(told.state)
        self._env = os.environ | ray_cluster.environment(os.environ.get("RSTAR2_ENGINE_TOKEN", ""))
        self._background: set[asyncio.Task[None]] = set()
        self.stopping = asyncio.Event()
        """Set by SIGTERM, or because another pod of the attempt got one."""

    @property
    def _folder(self) -> StageState:
        return self._state.stage(self._told.stage)

    # -- index 0 ----------------------------------------------------------------------------------------------------

    async def lead(self) -> int:
        """Index 0: the driver and what it needs."""
        why_not = acquire_attempt(self._folder.attempt_file, self._attempt)
        if why_not:
            return self._refuse(ExitCode.RETRYABLE, why_not)
        write_model(self._state.job_file, self._job)
        async with AsyncExitStack() as stack:
            return await self._lead(stack)

    async def _lead(self, stack: AsyncExitStack) -> int:
        told = self._told
        config_map = None
        if told.progress:
            config_map = await stack.enter_async_context(ProgressConfigMap.of_pod(told.progress, account=told.account))
        mirror = ProgressMirror(config_map, self._state, stage=told.stage, attempt=self._attempt)
        done = self._folder.outcome()
        if done is not None and self._folder.done:
            log.info("stage %s is already done in this storage: %s", told.stage, done.message)
            return await self._conclude(mirror, done.model_copy(update={"attempt": told.attempt}))
        # What an attempt of this number has left, of a job that was deleted, is not to be taken for ours.
        self._folder.outcome_file.unlink(missing_ok=True)
        self._state.progress_file.unlink(missing_ok=True)
        self._open_run()
        stack.push_async_callback(self._end_background)
        for work in (mirror.follow(), self._ship(), self._watch_leaving()):
            self._background.add(asyncio.create_task(work))
        address, outcome = None, None
        if told.nodes > 1 and self._stage.learns:
            address, outcome = await self._start_ray()
        if outcome is not None:
            return await self._conclude(mirror, outcome)
        code = await self._drive(address)
        outcome = self._folder.outcome()
        if outcome is None and self.stopping.is_set() and code == -signal.SIGTERM:
            outcome = self._outcome("suspended", "Suspended", "asked to stop before the driver had begun")
            return await self._conclude(mirror, outcome)
        if outcome is None or outcome.attempt != told.attempt:
            how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
            return self._refuse(code if code >= 0 else 128 - code, f"the driver {how} and left no outcome")
        await self._conclude(mirror, outcome)
        return code

    def _open_run(self) -> None:
        """Say where the journal goes, for the shipper: it may start before the driver does."""
        Tracker.for_job(self._job, self._state.root).close()

    async def _start_ray(self) -> tuple[str | None, Outcome | None]:
        """Address of the whole Ray cluster, or how the attempt ended before there was one."""
        cluster = self._cluster(head=_own_address())
        for _ in range(JOIN_TRIES):
            head = await self._spawn(cluster.head_command(store_bytes=ray_cluster.store_bytes()))
            waits = asyncio.create_task(self._all_nodes(cluster))
            ends = {waits, asyncio.create_task(head.wait()), asyncio.create_task(self.stopping.wait())}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            here = waits.done()
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            if here:
                return cluster.head_address, None
            if self.stopping.is_set():
                return None, self._outcome("suspended", "Suspended", "asked to stop before all pods were there")
            log.warning("the head ended with %s before all pods had joined", head.returncode)
        words = f"Ray's head ended {JOIN_TRIES} times before all {self._told.nodes} pods had joined (see the log)"
        return None, self._outcome("failed", "RanksLost", words)

    async def _all_nodes(self, cluster: RayCluster) -> None:
        """Return when every pod has given Ray its node."""
        while not (await reachable(cluster.head, cluster.port) and await self._have_joined(cluster)):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)

    async def _have_joined(self, cluster: RayCluster) -> bool:
        """Wait in a process that knows Ray; False when it could not (the caller sees the head's own end)."""
        process = await self._spawn(cluster.wait_command(self._told.nodes))
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()

    async def _drive(self, ray_address: str | None) -> int:
        """Run the driver to its end; SIGTERM goes on to it."""
        told = self._told
        command = [sys.executable, "-m", "rstar2_train.orchestrator", "--state", str(told.state)]
        command += ["--stage", told.stage, "--attempt", str(told.attempt)]
        for flag, value in (("--engines", told.engines), ("--judge", told.judge), ("--ray", ray_address)):
            command += [flag, value] if value else []
        driver = await self._spawn(command, ray=ray_address is not None)
        ended = asyncio.create_task(driver.wait())
        stop = asyncio.create_task(self.stopping.wait())
        await asyncio.wait({ended, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ended.done():
            log.info("asked to stop: the driver writes a checkpoint and ends")
            driver.terminate()
        return await ended

    async def _ship(self) -> None:
        """Keep the MLflow shipper running."""
        while True:
            process = await self._spawn(shipper.command(self._state.root), ray=False)
            code = await process.wait()
            log.warning("the MLflow shipper ended with %s and is started again", code)
            await asyncio.sleep(10 * LOOK_SECONDS)

    async def _watch_leaving(self) -> None:
        """When another pod of the attempt was asked to end, so is the driver: it can still write a checkpoint."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                leaving = read_attempt(self._folder.leaving_file)
            except (OSError, ValueError) as error:  # the storage is away, or two pods leave at the same moment
                log.warning("%s cannot be read: %s", self._folder.leaving_file, error)
                continue
            if leaving == self._attempt:
                log.info("a pod of this attempt was asked to end")
                self.stopping.set()
                return

    async def _end_background(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _outcome(self, kind: str, reason: Reason, message: str) -> Outcome:
        outcome = Outcome.model_validate(
            {"stage": self._told.stage, "attempt": self._told.attempt, "outcome": kind, "reason": reason}
        )
        return outcome.model_copy(update={"message": message, "retryable": kind == "failed"})

    async def _conclude(self, mirror: ProgressMirror, outcome: Outcome) -> int:
        """Storage first, then the termination message, then the ConfigMap."""
        write_model(self._folder.outcome_file, outcome)
        write_termination_message(to_json(outcome), self._told.termination_log)
        await mirror.conclude(outcome)
        return outcome.exit_code

    def _refuse(self, code: int, why: str) -> int:
        log.error("%s", why)
        write_termination_message(why, self._told.termination_log)
        return code

    # -- the other indexes ------------------------------------------------------------------------------------------

    async def serve(self) -> int:
        """Another index: a node of Ray for as long as the head lives; the Job's end is its own.

        SIGTERM alone does not end it: the driver needs its ranks to write a checkpoint. It is told, and then the
        head's end is this pod's end.
        """
        told = self._told
        if not self._stage.learns:
            raise ValueError(f"stage {told.stage} is driven from one pod; --nodes is {told.nodes}")
        cluster = self._cluster(head=told.head or ray_cluster.head_host(_host(), subdomain=told.subdomain))
        leaving = asyncio.create_task(self._tell_leaving())
        lost = 0
        log.info("waiting for the head at %s", cluster.head_address)
        while True:
            if not await reachable(cluster.head, cluster.port):
                if self.stopping.is_set():
                    leaving.cancel()
                    return ExitCode.DONE
                await asyncio.sleep(LOOK_SECONDS)
            elif await self._give_node(cluster):
                log.info("the head has ended: this node waits for another, or for its own end")
            else:
                lost += 1
                if lost == JOIN_TRIES:
                    break
                await asyncio.sleep(LOOK_SECONDS)
        return self._refuse(ExitCode.RETRYABLE, f"Ray on this pod ended {lost} times while its head was alive")

    async def _give_node(self, cluster: RayCluster) -> bool:
        """Be a node until the head ends (True), or the node does."""
        found = await resolve_addresses(cluster.head_address)
        if found:  # Ray takes an address as its own name for a node: not once a name and once a number
            cluster = dataclasses.replace(cluster, head=split_address(min(found))[0])
        node = await self._spawn(cluster.join_command(store_bytes=ray_cluster.store_bytes()))
        lost, ended = asyncio.create_task(node.wait()), asyncio.create_task(ray_cluster.wait_for_end(cluster))
        await asyncio.wait({lost, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            log.warning("the node ended with %s", node.returncode)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AFTERMATH_SECONDS):
                    await ended
        if node.returncode is None:
            node.kill()
        await lost
        gone = ended.done() and not ended.cancelled()
        ended.cancel()
        return gone

    async def _tell_leaving(self) -> None:
        await self.stopping.wait()
        log.info("asked to stop: the driver is told, and this node stays until it has ended")
        write_model(self._folder.leaving_file, self._attempt)

    # -- both -------------------------------------------------------------------------------------------------------

    def _cluster(self, *, head: str) -> RayCluster:
        return RayCluster(
            head=head,
            port=self._told.ray_port,
            address=_own_address(),
            slots=self._job.spec.trainer.ranks_per_replica,
            gpus=self._job.spec.trainer.gpus_per_replica,
        )

    async def _spawn(self, command: list[str], *, ray: bool = True) -> asyncio.subprocess.Process:
        """A child on this pod's output, which does not outlive it. `ray`: with the Ray cluster's environment."""
        env: Mapping[str, str] = self._env if ray else os.environ
        return await asyncio.create_subprocess_exec(
            *command, env=env, stdin=asyncio.subprocess.DEVNULL, preexec_fn=die_with_parent, start_new_session=True
        )


def acquire_attempt(file: Path, attempt: AttemptRecord) -> str:
    """Make `attempt` the one that may write; why not, when a later one of the same job is there already."""
    there = read_attempt(file)
    if there is not None and there.uid == attempt.uid and there.attempt > attempt.attempt:
        return f"StaleAttempt: attempt {there.attempt} has taken over from {attempt.attempt}"
    write_model(file, attempt)
    return ""


def _own_address() -> str:
    try:
        return os.environ["POD_IP"]
    except KeyError:
        raise ValueError("POD_IP is not set: it is this pod's address, from status.podIP") from None


def _host() -> str:
    return os.environ.get("HOSTNAME", "")
