"""kill -9 of the orchestrator with several versions in flight: nothing is lost, and nothing is trained twice.

Real engines, judge, ranks and deltas. RSTAR2_KILL_POINTS sets the number of kills; the figures are printed (`-s`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.data.sampler import PromptSampler
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.orchestrator.initial_policy import version_step
from rstar2_train.orchestrator.pipeline.group_log import GroupLog
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.trainer import checkpoint
from tests.support.engine import RESPONSE_TOKENS, SYSTEM, Engine
from tests.support.engine_fixtures import Models
from tests.support.engine_proxy import write_job, write_sums
from tests.support.folder_hashes import folder_hashes
from tests.support.unsupervised_judge import UnsupervisedJudge
from tests.support.version_trainer import engine_hashes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
POINTS = int(os.environ.get("RSTAR2_KILL_POINTS", "3"))
BOUND = 4
STEPS = 6 * POINTS + 6
PROBLEMS, PROMPTS, ROLLOUTS = 12, 2, 4
STAGE = "rl"
DEADLINE = 600
"""Seconds until the next step must be finished, on any machine."""
Stored = dict[tuple[int, str], list[list[int]]]
"""Token ids of each rollout of the complete groups on disk, by step and problem."""


def manifest(models: Models, problems: Path) -> dict[str, Any]:
    """Return a job of one GRPO stage. A high temperature gives right and wrong rollouts of the memorising model."""
    grpo = {
        "data": str(problems), "steps": STEPS, "promptsPerStep": PROMPTS, "rolloutsPerPrompt": ROLLOUTS,
        "keepPerPrompt": 2, "maxPromptTokens": 64, "maxResponseTokens": RESPONSE_TOKENS, "maxTurns": 4,
        "temperature": 1.7, "learningRate": 1e-5, "warmupSteps": 0, "maxStaleness": BOUND,
        "collapse": {"enabled": False},
    }  # fmt: skip
    return {
        "apiVersion": "rstar2.dev/v1alpha1",
        "kind": "AgenticRLJob",
        "metadata": {"name": "killed"},
        "spec": {
            "model": {"source": str(models.memorising), "systemPrompt": SYSTEM, "promptPrefix": ""},
            "accelerator": {"vendor": "None"},
            "trainer": {"gpusPerReplica": 0, "activationCheckpointing": "Never"},
            "executor": {"replicas": 1, "isolation": "None"},  # harmless calls; the sandbox has its own tests
            "rollout": {"weightTransport": "Delta", "weightProbe": True},
            "checkpoint": {"everySteps": 1, "keepLast": 2},
            "stages": [{"name": STAGE, "type": "GRPO", "grpo": grpo}],
        },
    }


@pytest.fixture
def engines(engine: Engine, models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """The engine of the session and a second one with the same token."""
    second = Engine(models.boot, folder=tmp_path_factory.mktemp("second"))
    second.token = engine.token
    try:
        second.start()
        yield [engine, second]
    finally:
        second.kill()


class Attempts:
    """The attempts of the stage, one process each."""

    def __init__(self, state: JobState, engines: list[Engine], judge: str) -> None:
        self._state, self._engines, self._judge = state, engines, judge
        self._process: subprocess.Popen[bytes] | None = None
        self.number = 0

    def start(self) -> None:
        """Start the next attempt."""
        self.number += 1
        write_model(self._state.stage(STAGE).attempt_file, AttemptRecord(attempt=self.number))
        argv = [sys.executable, "-m", "rstar2_train.orchestrator", "--state", str(self._state.root)]
        argv += ["--stage", STAGE, "--attempt", str(self.number), "--judge", self._judge]
        for engine in self._engines:
            argv += ["--engine", engine.url]
        env = os.environ | {"RSTAR2_ENGINE_TOKEN": self._engines[0].token}
        with (self._state.root / "attempts.log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, env=env, start_new_session=True)

    def kill(self) -> None:
        """Kill the orchestrator and its ranks with SIGKILL, if it runs."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def wait_for(self, step: int, *, seconds: float = DEADLINE) -> int:
        """Wait until the current attempt has finished `step` steps; return its step."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            progress = self._state.progress()
            if progress is not None and progress.attempt == self.number and progress.step >= step:
                return progress.step
            assert self._process is not None
            if self._process.poll() is not None and step < STEPS:
                break
            time.sleep(0.05)
        log = (self._state.root / "attempts.log").read_text(errors="replace")
        raise AssertionError(f"attempt {self.number} did not finish step {step}:\n{log[-4000:]}")

    def stop_at_batch(self) -> None:
        """Stop the attempt (SIGSTOP) while a group of a step that the trainer has not reached is on disk."""
        assert self._process is not None
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            if self._has_batch():  # no longer, if this process paused here
                os.killpg(self._process.pid, signal.SIGSTOP)
                if self._has_batch() and any(step > self._reached for step, _ in stored_groups(self._state)):
                    return
                os.killpg(self._process.pid, signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError(f"no group of a later step was on disk within {DEADLINE} s")

    @property
    def _reached(self) -> int:
        progress = self._state.progress()
        return progress.step if progress is not None else 0

    def _has_batch(self) -> bool:
        folder = self._state.stage(STAGE).trajectories
        paths = (trajectory_store.step_path(folder, step) for step in range(self._reached + 1, STEPS))
        return bool({path.with_suffix(".groups") for path in paths} & set(folder.glob("*.groups")))

    def finish(self) -> None:
        """Wait for the end of the stage."""
        assert self._process is not None
        assert self._process.wait(DEADLINE) == 0, (self._state.root / "attempts.log").read_text()[-4000:]


def stored_groups(state: JobState) -> Stored:
    """Return the complete groups on disk; the orchestrator must be dead or stopped."""
    groups: dict[tuple[int, str], list[Trajectory]] = {}
    folder = state.stage(STAGE).trajectories
    for step in range(1, STEPS + 1):
        parquet = trajectory_store.step_path(folder, step)
        if parquet.exists():
            for row in trajectory_store.read(parquet):
                groups.setdefault((step, row.prompt_id), []).append(row)
        for group in GroupLog(parquet).read():
            groups[step, group[0].prompt_id] = group
    return {key: _tokens(group) for key, group in groups.items() if not any(row.failed for row in group)}


def _tokens(group: list[Trajectory]) -> list[list[int]]:
    ordered = sorted(group, key=lambda row: row.sample)
    return [[token for segment in row.segments for token in segment.token_ids] for row in ordered]


async def test_orchestrator_killed_with_versions_in_flight(
    engines: list[Engine], models: Models, judge_stack: UnsupervisedJudge, tmp_path: Path
) -> None:
    """Each group on disk at a kill is trained on once, unchanged and within the bound; the engines have the weights."""
    state = write_job(manifest(models, write_sums(tmp_path, golds=["42"] * PROBLEMS)), tmp_path / "job")
    draw, attempts = random.Random(0), Attempts(state, engines, judge_stack.url)
    stored: Stored = {}
    figures = []
    try:
        attempts.start()
        attempts.wait_for(1)
        first = time.monotonic()
        reached = attempts.wait_for(2)
        step_seconds = time.monotonic() - first
        for _ in range(POINTS):
            time.sleep(draw.uniform(0, 2 * step_seconds))
            if not any(figure["batches_ahead"] for figure in figures):
                attempts.stop_at_batch()
            attempts.kill()
            killed = time.monotonic()
            at_kill = stored_groups(state)
            progress = state.progress()
            assert progress is not None
            reached = max(reached, progress.step)
            ahead = {step for step, _ in at_kill if step > reached}
            stored = at_kill | stored
            attempts.start()
            reached = attempts.wait_for(reached + 1)
            figures.append({"step": reached, "batches_ahead": len(ahead), "seconds": time.monotonic() - killed})
            print(json.dumps(figures[-1]), flush=True)
        attempts.finish()
    finally:
        attempts.kill()
    assert any(figure["batches_ahead"] > 0 for figure in figures), "no kill had a batch in flight"
    assert_nothing_lost(state, stored)
    await assert_engines_equal(engines, state)
    print(f"longest time to the next step: {max(figure['seconds'] for figure in figures):.1f} s")


def assert_nothing_lost(state: JobState, stored: Stored) -> None:
    """Assert that each step trained its own groups once, that no stored group changed, and that the bound held."""
    folder, stage = state.stage(STAGE), state.job().stage(STAGE)
    (*_, (last, path)) = checkpoint.list_checkpoints(folder.checkpoints)
    assert last == STEPS
    history = checkpoint.verify(path).extra["history"]
    assert [record["step"] for record in history] == list(range(1, STEPS + 1)), "each step is trained on once"
    assert not list(folder.trajectories.glob("*.groups"))
    final = stored_groups(state)
    order = PromptSampler(PROBLEMS, PROMPTS, state.job().spec.seed, STAGE)
    for step in range(1, STEPS + 1):
        assert {prompt for at, prompt in final if at == step} == {str(index) for index in order.at(step - 1)}
        for row in trajectory_store.read(trajectory_store.step_path(folder.trajectories, step)):
            for segment in row.segments:
                for version, _ in segment.version_spans():
                    sampled = version_step(stage, version)
                    assert sampled is not None and 0 <= step - 1 - sampled <= BOUND
    assert stored
    assert {key: final[key] for key in stored} == stored, "a group that was on disk was sampled again"
    assert all(len(group) == ROLLOUTS for group in final.values())


async def assert_engines_equal(engines: list[Engine], state: JobState) -> None:
    """Assert that every engine has the final model bit by bit."""
    expected = folder_hashes(state.stage(STAGE).model)
    async with EngineSession() as session:
        for engine in engines:
            actual = await engine_hashes(EngineClient(engine.url, token=engine.token, session=session))
            assert actual.items() >= expected.items()
