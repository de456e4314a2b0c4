"""One pod of a stage attempt: index 0 runs the orchestrator and Ray's head; every other index runs a Ray node.

    index 0: acquire the attempt (attempt.json) -> Ray head, if there are several pods -> orchestrator
             in the background: ProgressMirror, MLflow shipper, the other pods' stop requests
    index N: join the head as a Ray node until the head stops

Index 0 exits with the orchestrator's exit code. It is the container's first process, so everything stops with it. Ray
is never stopped in order, because the other pods would then stop too early.
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

from rstar2_train.api.contracts import AttemptRecord, ExitCode, Outcome, Reason, StageFailed, write_model
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_source
from rstar2_train.api.state_dir import JobState, StageState
from rstar2_train.launch.pod import ray_cluster
from rstar2_train.launch.pod.attempt_record import acquire_attempt, write_outcome
from rstar2_train.launch.pod.bucket import PodBucket, disk_remedy
from rstar2_train.launch.pod.prepare import provide_sources
from rstar2_train.launch.pod.progress_config_map import ACCOUNT, ProgressConfigMap
from rstar2_train.launch.pod.progress_mirror import TERMINATION_LOG, ProgressMirror, to_json, write_termination_message
from rstar2_train.launch.pod.ray_cluster import RayCluster, reachable
from rstar2_train.launch.pod.stop_channel import answer_stops, request_stop, token
from rstar2_train.storage.pod_starts import launch_start
from rstar2_train.storage.publication import Fenced
from rstar2_train.tracking import shipper
from rstar2_train.tracking.tracker import Tracker
from rstar2_train.utils import ports
from rstar2_train.utils.auth import ENGINE_TOKEN, read_secret
from rstar2_train.utils.disk import DISK_FULL
from rstar2_train.utils.dns import resolve_addresses, split_address
from rstar2_train.utils.ray_environment import store_bytes
from rstar2_train.utils.supervisor import describe_exit, die_with_parent

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
SHIPPER_RESTART_SECONDS = 10.0
JOIN_ATTEMPTS = 6
"""Starts of a head or node that exits: on a busy machine Ray gives up within seconds. After the orchestrator has
started, it detects lost ranks itself."""
HEAD_CHECK_SECONDS = 15.0
"""How long a pod whose Ray node exited checks whether the head has stopped, which is no failure of the node."""


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """Options of the command line."""

    job_file: Path
    state: Path
    stage: str
    attempt: int
    nodes: int
    """Pods of the attempt."""
    subdomain: str
    """Headless Service that names the pods."""
    engines: str = ""
    teacher: str = ""
    judge: str = ""
    environment: str = ""
    agent_port: int = 0
    progress: str = ""
    """Name of the progress ConfigMap; empty: none."""
    ray_port: int = ports.RAY
    head: str = ""
    """Host of index 0; empty: derived from this pod's host name and the subdomain."""
    account: Path = ACCOUNT
    termination_log: Path = TERMINATION_LOG


async def launch(options: AttemptOptions, *, index: int) -> int:
    """Run this pod to its end; return its exit code. Raises ValueError for an invalid environment."""
    job = AgenticRLJob.model_validate_json(options.job_file.read_text(encoding="utf-8"))
    pod = _TrainerPod(options, job)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, pod.stopping.set)
    return await (pod.run_head() if index == 0 else pod.run_node())


class _TrainerPod:
    """One pod of an attempt."""

    def __init__(self, options: AttemptOptions, job: AgenticRLJob) -> None:
        self._options = options
        self._job = job
        self._stage = job.stage(options.stage)
        self._attempt = AttemptRecord(attempt=options.attempt, uid=job.metadata.uid)
        self._state = JobState(options.state)
        self._bucket = PodBucket(job, self._state, launch_start(job, options.stage, options.attempt))
        secret = read_secret(ENGINE_TOKEN) or ""
        self._env = os.environ | ray_cluster.environment(secret)
        self._stop_token = token(secret)
        self._background: set[asyncio.Task[None]] = set()
        self.stopping = asyncio.Event()
        """Set by SIGTERM to this pod, or to another pod of the attempt."""

    @property
    def _folder(self) -> StageState:
        return self._state.stage(self._options.stage)

    # -- index 0 ----------------------------------------------------------------------------------------------------

    async def run_head(self) -> int:
        """Run index 0: the orchestrator and its background tasks. A full disk is reported without a file on it."""
        options = self._options
        async with AsyncExitStack() as stack:
            config_map = None
            if options.progress:
                progress_map = ProgressConfigMap.from_pod(options.progress, account=options.account)
                config_map = await stack.enter_async_context(progress_map)
            mirror = ProgressMirror(
                config_map, self._state, stage=options.stage, attempt=self._attempt, unreachable=self._bucket.outage
            )
            try:
                await asyncio.to_thread(self._restore)
                error = acquire_attempt(self._folder.attempt_file, self._attempt)
                if error:
                    return self._fail(ExitCode.RETRYABLE, error)
                write_model(self._state.job_file, self._job)
                await asyncio.to_thread(self._bucket.publish, self.stopping.is_set)
                return await self._run_orchestrator(mirror, stack)
            except Fenced as failure:
                return self._stale(str(failure))
            except StageFailed as failure:
                outcome = self._outcome("failed", failure.reason, str(failure), retryable=failure.retryable)
                return await self._announce(mirror, outcome)
            except OSError as failure:
                if failure.errno not in DISK_FULL:
                    raise
                log.error("%s", failure)
                return await self._announce(mirror, self._storage_full())

    def _restore(self) -> None:
        """Bring the pod's empty disk to the newest state of the bucket, with the job's sources. Nothing for a claim."""
        if self._bucket.open(self.stopping.is_set):
            provide_sources(read_source(self._options.job_file), self._job, self._state)

    async def _run_orchestrator(self, mirror: ProgressMirror, stack: AsyncExitStack) -> int:
        options = self._options
        done = self._folder.outcome()
        if done is not None and self._folder.done:
            log.info("stage %s is already done in this storage: %s", options.stage, done.message)
            return await self._conclude(mirror, done.model_copy(update={"attempt": options.attempt}))
        # A deleted job with the same name may have left files of an attempt with the same number.
        self._folder.outcome_file.unlink(missing_ok=True)
        self._state.progress_file.unlink(missing_ok=True)
        self._open_run()
        self._bucket.follow()
        stack.push_async_callback(self._stop_background)
        works = [mirror.follow(), self._run_shipper()]
        if options.nodes > 1 and self._stage.learns:
            cluster = self._cluster(head=_own_address())
            works.append(answer_stops(cluster.head, cluster.stop_port, self._stop_token, self.stopping.set))
        self._background.update(map(asyncio.create_task, works))
        address, outcome = None, None
        if options.nodes > 1 and self._stage.learns:
            address, outcome = await self._start_ray()
        if outcome is not None:
            return await self._conclude(mirror, outcome)
        code = await self._orchestrate(address)
        if self._bucket.fenced:
            return self._stale(self._bucket.fenced)
        outcome = self._folder.outcome()
        if outcome is None and self.stopping.is_set() and code == -signal.SIGTERM:
            outcome = self._outcome("suspended", "Suspended", "stopped before the orchestrator had started")
            return await self._conclude(mirror, outcome)
        if outcome is None or outcome.attempt != options.attempt:
            if self._folder.attempt() == self._attempt:
                write_model(self._state.job_file, self._job)  # a full disk is why there is no outcome: it raises
            message = f"the orchestrator {describe_exit(code)} and wrote no outcome"
            if unpublished := await self._bucket.finish():
                message += f"; {unpublished}"
            if self._bucket.fenced:
                return self._stale(self._bucket.fenced)
            return self._fail(code if code >= 0 else 128 - code, message)
        return await self._conclude(mirror, outcome)

    def _open_run(self) -> None:
        """Write the destination of the journal for the shipper, which may start before the orchestrator."""
        Tracker.for_job(self._job, self._state.root).close()

    async def _start_ray(self) -> tuple[str | None, Outcome | None]:
        """Start the head and wait for all nodes. Returns the cluster's address, or the outcome of a failed start."""
        cluster = self._cluster(head=_own_address())
        for _ in range(JOIN_ATTEMPTS):
            head = await self._spawn(cluster.head_command(store_bytes=store_bytes()))
            complete = asyncio.create_task(self._wait_for_nodes(cluster))
            ends = {complete, asyncio.create_task(head.wait()), asyncio.create_task(self.stopping.wait())}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            is_complete = complete.done()
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            if is_complete:
                return cluster.head_address, None
            if self.stopping.is_set():
                return None, self._outcome("suspended", "Suspended", "stopped before all pods had joined")
            log.warning("the head exited with code %s before all pods had joined", head.returncode)
        message = (
            f"Ray's head exited {JOIN_ATTEMPTS} times before all {self._options.nodes} pods had joined: see the log"
        )
        return None, self._outcome("failed", "RanksLost", message)

    async def _wait_for_nodes(self, cluster: RayCluster) -> None:
        """Return when every pod has joined the cluster as a node."""
        while not (await reachable(cluster.head, cluster.port) and await self._have_joined(cluster)):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)

    async def _have_joined(self, cluster: RayCluster) -> bool:
        """Wait in a process that imports Ray; False if it failed (the caller watches the head itself)."""
        process = await self._spawn(cluster.wait_command(self._options.nodes))
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()

    async def _orchestrate(self, ray_address: str | None) -> int:
        """Run the orchestrator to its end; a stop request is passed to it. Returns its exit code."""
        options = self._options
        command = [sys.executable, "-m", "rstar2_train.orchestrator", "--state", str(options.state)]
        command += ["--stage", options.stage, "--attempt", str(options.attempt)]
        for flag, value in (
            ("--engines", options.engines),
            ("--teacher", options.teacher),
            ("--judge", options.judge),
            ("--environment", options.environment),
            ("--agent-port", str(options.agent_port or "")),
            ("--ray", ray_address),
        ):
            command += [flag, value] if value else []
        command += ["--bucket"] if self._job.spec.storage.url else []
        orchestrator = await self._spawn(command, ray=ray_address is not None)
        exited = asyncio.create_task(orchestrator.wait())
        stop = asyncio.create_task(self.stopping.wait())
        fenced = asyncio.create_task(self._kill_if_fenced(orchestrator))
        await asyncio.wait({exited, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not exited.done():
            log.info("stop requested: the orchestrator writes a checkpoint and exits")
            orchestrator.terminate()
        code = await exited
        fenced.cancel()
        return code

    async def _kill_if_fenced(self, orchestrator: asyncio.subprocess.Process) -> None:
        """Stop the work of an attempt whose state no later attempt will read."""
        while not self._bucket.fenced:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        orchestrator.kill()

    async def _run_shipper(self) -> None:
        """Run the MLflow shipper, and restart it when it exits."""
        while True:
            process = await self._spawn(shipper.command(self._state.root), ray=False)
            code = await process.wait()
            log.warning("the MLflow shipper %s; restarting it", describe_exit(code))
            await asyncio.sleep(SHIPPER_RESTART_SECONDS)

    async def _stop_background(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _outcome(self, kind: str, reason: Reason, message: str, *, retryable: bool = True) -> Outcome:
        outcome = Outcome.model_validate(
            {"stage": self._options.stage, "attempt": self._options.attempt, "outcome": kind, "reason": reason}
        )
        return outcome.model_copy(update={"message": message, "retryable": retryable and kind == "failed"})

    def _storage_full(self) -> Outcome:
        message = (
            f"No space left on the disk of {self._state.root}. {disk_remedy(self._job)}, then delete the job and apply "
            "it again: it continues from its last checkpoint."
        )
        return self._outcome("failed", "StorageFull", message, retryable=False)

    async def _conclude(self, mirror: ProgressMirror, outcome: Outcome) -> int:
        """Write the outcome to the storage, then announce it, unless this attempt is stale. Returns the exit code."""
        if error := write_outcome(self._folder, self._attempt, outcome):
            return self._fail(ExitCode.RETRYABLE, error)
        # The operator may start the next stage when it has read the outcome: the bucket must have all of it before.
        unpublished = await self._bucket.finish()
        if self._bucket.fenced:
            return self._stale(self._bucket.fenced)
        if unpublished:
            outcome = self._outcome("failed", "StorageUnavailable", unpublished[:2000])
        return await self._announce(mirror, outcome)

    async def _announce(self, mirror: ProgressMirror, outcome: Outcome) -> int:
        """Write the outcome to the termination message, then to the ConfigMap. Returns its exit code."""
        write_termination_message(to_json(outcome), self._options.termination_log)
        await mirror.conclude(outcome)
        return outcome.exit_code

    def _stale(self, message: str) -> int:
        return self._fail(ExitCode.RETRYABLE, f"StaleAttempt: {message}")

    def _fail(self, code: int, message: str) -> int:
        log.error("%s", message)
        write_termination_message(message, self._options.termination_log)
        return code

    # -- the other indexes ------------------------------------------------------------------------------------------

    async def run_node(self) -> int:
        """Run another index: a Ray node as long as the head runs. The end of the Job stops this pod.

        SIGTERM does not stop the node, because the orchestrator needs its ranks to write a checkpoint. The orchestrator
        is notified, and this pod stops when the head has stopped.
        """
        options = self._options
        if not self._stage.learns:
            raise ValueError(f"stage {options.stage} runs in one pod, but --nodes is {options.nodes}")
        cluster = self._cluster(head=options.head or ray_cluster.head_host(_host(), subdomain=options.subdomain))
        leaving = asyncio.create_task(self._announce_stop(cluster))
        failures = 0
        log.info("waiting for the head at %s", cluster.head_address)
        while True:
            if not await reachable(cluster.head, cluster.port):
                if self.stopping.is_set():
                    leaving.cancel()
                    return ExitCode.DONE
                await asyncio.sleep(POLL_SECONDS)
            elif await self._run_ray_node(cluster):
                log.info("the head has stopped: this node waits for a new head, or for its own stop")
            else:
                failures += 1
                if failures == JOIN_ATTEMPTS:
                    break
                await asyncio.sleep(POLL_SECONDS)
        return self._fail(ExitCode.RETRYABLE, f"Ray on this pod exited {failures} times while its head was running")

    async def _run_ray_node(self, cluster: RayCluster) -> bool:
        """Run a node until the head stops (returns True) or the node exits (returns False)."""
        addresses = await resolve_addresses(cluster.head_address)
        if addresses:  # Ray identifies a node by its address: the name and the IP address would be two nodes
            cluster = dataclasses.replace(cluster, head=split_address(min(addresses))[0])
        node = await self._spawn(cluster.join_command(store_bytes=store_bytes()))
        exited, head_end = asyncio.create_task(node.wait()), asyncio.create_task(ray_cluster.wait_for_end(cluster))
        await asyncio.wait({exited, head_end}, return_when=asyncio.FIRST_COMPLETED)
        if not head_end.done():
            log.warning("the Ray node exited with code %s", node.returncode)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEAD_CHECK_SECONDS):
                    await head_end
        if node.returncode is None:
            node.kill()
        await exited
        head_stopped = head_end.done() and not head_end.cancelled()
        head_end.cancel()
        return head_stopped

    async def _announce_stop(self, cluster: RayCluster) -> None:
        """On a stop request, pass it to index 0."""
        await self.stopping.wait()
        log.info("stop requested: notifying the orchestrator; this node stays until it has exited")
        await request_stop(cluster.head, cluster.stop_port, self._stop_token)

    # -- both -------------------------------------------------------------------------------------------------------

    def _cluster(self, *, head: str) -> RayCluster:
        return RayCluster(
            head=head,
            port=self._options.ray_port,
            address=_own_address(),
            slots=self._job.spec.trainer.ranks_per_replica,
            gpus=self._job.spec.trainer.gpus_per_replica,
        )

    async def _spawn(self, command: list[str], *, ray: bool = True) -> asyncio.subprocess.Process:
        """Start a child with this pod's output, which dies with this process. `ray`: with the cluster's environment."""
        env: Mapping[str, str] = self._env if ray else os.environ
        return await asyncio.create_subprocess_exec(
            *command, env=env, stdin=asyncio.subprocess.DEVNULL, preexec_fn=die_with_parent, start_new_session=True
        )


def _own_address() -> str:
    try:
        return os.environ["POD_IP"]
    except KeyError:
        raise ValueError("POD_IP is not set. It must be this pod's address, from status.podIP.") from None


def _host() -> str:
    return os.environ.get("HOSTNAME", "")
