"""The steps of a GRPO stage: the files of an attempt that ends inside a step, and how the next attempt resumes."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rstar2_train.api.contracts import Outcome, StageFailed, write_model
from rstar2_train.data.problems import Problem
from rstar2_train.orchestrator.context import StageContext, SuspendRequested
from rstar2_train.orchestrator.device_sharing import DeviceSharing
from rstar2_train.orchestrator.initial_policy import version_step
from rstar2_train.orchestrator.pipeline.generator import Batch
from rstar2_train.orchestrator.pipeline.group_log import GroupLog
from rstar2_train.orchestrator.stages import grpo
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Segment, Trajectory
from rstar2_train.tracking.tracker import journal_file
from rstar2_train.trainer import checkpoint
from tests.support.fake_rollouts import CharacterFormat, FakeRollouts, rollout
from tests.support.stage_attempt import FakeTrainerGroup, NewAttempt, fake_sessions


async def run(ctx: StageContext, rollouts: FakeRollouts | None = None, **hooks: Callable[..., None]) -> Outcome:
    """Run the stage; `hooks`: of FakeTrainerGroup."""
    return await grpo.run(ctx, fake_sessions(rollouts or FakeRollouts(), chat_format=CharacterFormat(), **hooks))


def reported(ctx: StageContext) -> list[tuple[int, str]]:
    """Return each report of a step's reward and times in the journal, as (step, metric)."""
    events = [json.loads(line) for line in journal_file(ctx.state.root).read_text().splitlines()]
    metrics = ("reward/mean", "time/rollout_seconds", "time/weights_seconds", "time/step_seconds")
    return [
        (event["step"], name)
        for event in events
        if event["kind"] == "metrics" and event["step"]
        for name in event["values"]
        if name in metrics
    ]


def kept(ctx: StageContext) -> list[int]:
    """Return the steps of the existing checkpoints."""
    return [step for step, _ in checkpoint.list_checkpoints(ctx.folder.checkpoints)]


async def test_grpo_failed_push_does_not_report_a_step_twice(stage: Callable[..., StageContext]) -> None:
    """A step with a checkpoint is finished, although its weights did not reach the engines."""

    def fail(version: str) -> None:
        if version == "g0-step-000002":
            raise StageFailed("EngineUnavailable", "all engines are unreachable", retryable=True)

    ctx = stage()
    with pytest.raises(StageFailed, match="all engines are unreachable"):
        await run(ctx, FakeRollouts(on_push=fail))
    assert kept(ctx) == [1, 2]
    whole = ["reward/mean", "time/rollout_seconds"]
    pushed = ["time/weights_seconds", "time/step_seconds"]
    assert reported(ctx) == [(1, name) for name in whole + pushed] + [(2, name) for name in whole]
    assert '"kind":"trace"' in journal_file(ctx.state.root).read_text()

    ctx = stage(attempt=2)
    outcome = await run(ctx)
    assert (outcome.outcome, outcome.checkpoint and outcome.checkpoint.step) == ("completed", 4)
    rewards = [step for step, name in reported(ctx) if name == "reward/mean"]
    assert rewards == [1, 2, 3, 4]
    last = checkpoint.verify(checkpoint.checkpoint_path(ctx.folder.checkpoints, 4))
    assert last.extra["best"] == [0.5, 1], "all rewards are equal: the first checkpoint stays the best"


async def test_grpo_stop_during_update_writes_a_checkpoint(stage: Callable[..., StageContext]) -> None:
    """A stop request during an update leads to a checkpoint of that step; its weights are not pushed."""
    ctx, rollouts = stage(every=100), FakeRollouts()

    def stop(group: FakeTrainerGroup) -> None:
        if group.weights == 2:
            ctx.stopping.set()

    with pytest.raises(SuspendRequested):
        await run(ctx, rollouts, on_step=stop)
    assert kept(ctx) == [2]
    assert rollouts.pushed == ["g0-step-000000", "g0-step-000001"]

    ctx, rollouts = stage(attempt=2, every=100), FakeRollouts()
    outcome = await run(ctx, rollouts)
    assert outcome.outcome == "completed"
    assert rollouts.pushed == ["g0-step-000002", "g0-step-000003", "g0-step-000004"]
    assert (ctx.folder.model / "weights.json").read_text() == "4"


async def test_grpo_checkpoint_overlaps_the_next_rollouts(stage: Callable[..., StageContext]) -> None:
    """A checkpoint is written while the engines sample the next step, and is complete before the next update."""
    sampled, events = threading.Event(), list[str]()

    async def before_sample() -> None:
        if "update 2" in events:
            await asyncio.sleep(0.05)  # the save has started
            events.append("sampled")
            sampled.set()

    def on_save(step: int) -> None:
        assert sampled.wait(120), "the engines did not sample meanwhile"
        events.append(f"saved {step}")

    def on_step(group: FakeTrainerGroup) -> None:
        events.append(f"update {group.weights:.0f}")

    ctx = stage(every=2)
    await run(ctx, FakeRollouts(before_sample=before_sample), on_save=on_save, on_step=on_step)
    assert events[:5] == ["update 1", "update 2", "sampled", "saved 2", "update 3"]
    assert kept(ctx) == [2, 4]


class RecordedSharing(DeviceSharing):
    """A shared device that calls no engine."""

    def __init__(self, lock: Path) -> None:
        super().__init__(["http://engine"], token="", lock=lock)
        self.changes: list[str] = []

    async def _call(self, change: Callable[..., Any], *, patience: float) -> None:
        self.changes.append(change.__name__)


def is_locked(path: Path) -> bool:
    """Return whether a process that takes the lock would wait."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("stopped_at", [None, 2])
async def test_grpo_time_shared_device_has_one_user(stage: Callable[..., StageContext], stopped_at: int | None) -> None:
    """With a time-shared device, the ranks are asleep while the engines sample, and the engines sleep otherwise."""
    ctx, groups = stage(every=2), list[FakeTrainerGroup]()
    ctx.device = device = RecordedSharing(ctx.state.device_lock)

    class Rollouts(FakeRollouts):
        async def push(self, group: FakeTrainerGroup, version: str) -> None:
            assert not group.asleep  # its weights are written
            await device.to_engines()

        async def push_folder(self, folder: Path, version: str) -> None:
            await device.to_engines()

    async def before_sample() -> None:
        await device.to_engines()
        assert device.changes[-1] == "wake_up" and device.group is not None and device.group.asleep  # type: ignore[attr-defined]
        assert not is_locked(ctx.state.device_lock)  # a killed engine may start
        if stopped_at == len(groups):
            ctx.stopping.set()
            raise SuspendRequested

    def on_step(group: FakeTrainerGroup) -> None:
        assert device.changes[-1] == "sleep" and is_locked(ctx.state.device_lock)
        groups.append(group)

    rollouts = Rollouts(before_sample=before_sample)
    if stopped_at is None:
        outcome = await run(ctx, rollouts, on_step=on_step)
        assert outcome.outcome == "completed" and kept(ctx) == [2, 4]
        assert device.changes == ["sleep", *["wake_up", "sleep"] * 5]  # four steps, and the last export
    else:
        with pytest.raises(SuspendRequested):
            await run(ctx, rollouts, on_step=on_step)
        assert kept(ctx) == [2]


async def test_grpo_failed_background_checkpoint_fails_the_stage(stage: Callable[..., StageContext]) -> None:
    """The error of a background checkpoint is raised before the first update after it, and the last one stays."""

    def full_disk(step: int) -> None:
        if step == 2:
            raise OSError(errno.ENOSPC, "no space left on device")

    ctx = stage()
    with pytest.raises(StageFailed, match="no space left"):
        await run(ctx, on_save=full_disk)
    assert kept(ctx) == [1]
    # The write of step 2 may fail while step 3 is trained.
    assert [step for step, name in reported(ctx) if name == "reward/mean"] in ([1, 2], [1, 2, 3])


@pytest.mark.parametrize("reset", [False, True])
async def test_grpo_warms_up_only_a_fresh_optimizer(stage: Callable[..., StageContext], reset: bool) -> None:
    """A stage that inherits the optimiser starts at the full learning rate."""
    for number, expected in enumerate([[0.25, 0.5, 0.75, 1.0], [0.25, 0.5, 0.75, 1.0] if reset else [1.0] * 4]):
        ctx = stage("gg", number, learningRate=1.0, warmupSteps=4, resetOptimizer=reset)
        write_model(ctx.folder.outcome_file, await run(ctx))
        events = map(json.loads, journal_file(ctx.state.root).read_text().splitlines())
        values = [event["values"] for event in events if event["kind"] == "metrics" and event["run"] == ctx.stage.name]
        assert [step["trainer/lr"] for step in values if "trainer/lr" in step] == expected


@pytest.mark.parametrize(("changed", "first"), [({}, 1), ({"temperature": 0.5}, 2), ({"maxTurns": 3}, 2)])
async def test_grpo_restart_samples_only_missing_groups(
    stage: Callable[..., StageContext], changed: dict[str, float], first: int
) -> None:
    """An attempt that dies inside a batch keeps its complete groups; the next attempt samples the others.

    With another temperature or limit it samples all of them: the update takes them as rollouts of its own policy.
    """

    class DyingRollouts(FakeRollouts):
        async def sample_groups(
            self, problems: Sequence[Problem], *, on_group: Callable[[list[Trajectory]], None], **more: Any
        ) -> None:
            on_group([rollout(problems[0], sample) for sample in range(more["samples"])])
            raise StageFailed("EngineUnavailable", "all engines are unreachable", retryable=True)

    class RecordingRollouts(FakeRollouts):
        sampled: ClassVar[list[list[str]]] = []

        async def sample_groups(self, problems: Sequence[Problem], **more: Any) -> None:
            self.sampled.append([problem.id for problem in problems])
            await super().sample_groups(problems, **more)

    ctx = stage()
    with pytest.raises(StageFailed, match="all engines are unreachable"):
        await run(ctx, DyingRollouts())
    log = ctx.folder.trajectories / "step-000001.groups"
    assert log.exists()

    ctx = stage(attempt=2, **changed)
    assert (await run(ctx, RecordingRollouts())).outcome == "completed"
    assert [len(ids) for ids in RecordingRollouts.sampled] == [first, 2, 2, 2]
    rows = trajectory_store.read(ctx.folder.trajectories / "step-000001.parquet")
    assert sorted((row.sample, row.kept) for row in rows) == [(0, True), (0, True), (1, True), (1, True)]
    assert len({row.prompt_id for row in rows}) == 2
    assert not log.exists()


@pytest.mark.parametrize("complete", [True, False])
async def test_grpo_restart_stores_the_selection_that_trains(
    stage: Callable[..., StageContext], complete: bool
) -> None:
    """After a change of the objective the files have the new selection: of a whole batch, and of its first group."""

    class TruncatedRollouts(FakeRollouts):
        async def sample_groups(
            self, problems: Sequence[Problem], *, on_group: Callable[[list[Trajectory]], None], **more: Any
        ) -> None:
            for problem in problems if complete else problems[:1]:
                group = [rollout(problem, sample) for sample in range(more["samples"])]
                group[1].stop = "length"
                on_group(group)
            if not complete:
                raise StageFailed("EngineUnavailable", "no engine", retryable=True)

    def die(group: FakeTrainerGroup) -> None:
        raise StageFailed("RanksLost", "a rank is lost", retryable=True)

    ctx = stage()
    with pytest.raises(StageFailed):
        await run(ctx, TruncatedRollouts(), on_step=die)
    await run(stage(attempt=2, objective={"truncated": "Mask"}))
    rows = trajectory_store.read(ctx.folder.trajectories / "step-000001.parquet")
    marks = {(row.stop, row.kept, row.selection_reason) for row in rows}
    assert ("length", False, "untrained: truncated") in marks and ("answered", True, "kept: positive") in marks
    assert ("length", True, "kept: negative") not in marks


class SlowRollouts(FakeRollouts):
    """Rollouts that take time, so that the weights change in between; each turn records the versions it spans."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.running = 0
        self.most_running = 0

    async def sample_groups(
        self, problems: Sequence[Problem], *, samples: int, on_group: Callable[[list[Trajectory]], None], **_: object
    ) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        for number, problem in enumerate(problems):
            before = self.pushed[-1]
            await asyncio.sleep(0.02 * (number + 1))
            group = [rollout(problem, sample) for sample in range(samples)]
            for trajectory in group:
                segment = Segment("model", [66, 67], logprobs=[-0.5, -0.5], versions=[(before, 0)])
                if self.pushed[-1] != before:
                    segment.versions.append((self.pushed[-1], 1))
                trajectory.segments = [segment]
            on_group(group)
        self.running -= 1


@pytest.mark.parametrize("bound", [0, 1, 2])
async def test_grpo_max_staleness_bounds_every_token(stage: Callable[..., StageContext], bound: int) -> None:
    """No stored token is older than `maxStaleness` at its step, and batches overlap as far as the bound allows."""
    ctx, rollouts = stage(maxStaleness=bound), SlowRollouts()
    outcome = await run(ctx, rollouts, on_step=lambda _: time.sleep(0.02))
    assert (outcome.outcome, outcome.checkpoint and outcome.checkpoint.step) == ("completed", 4)
    ages = set()
    for step, file in trajectory_store.step_files(ctx.folder.trajectories):
        for trajectory in trajectory_store.read(file):
            for version, _ in trajectory.segments[0].version_spans():
                age = version_step(ctx.stage, version)
                assert age is not None
                ages.add(step - 1 - age)
    assert min(ages) == 0
    assert max(ages) == bound
    assert rollouts.most_running <= bound + 1
    assert (rollouts.most_running > 1) == (bound > 0)
    assert rollouts.pushed[-1] == "g0-step-000004", "the engines serve the final weights for the validation"


async def test_grpo_staleness_is_reported(stage: Callable[..., StageContext]) -> None:
    """The shares of the staleness values sum to 1; the first batch is fresh."""
    ctx = stage(maxStaleness=2)
    await run(ctx, SlowRollouts())
    events = [json.loads(line) for line in journal_file(ctx.state.root).read_text().splitlines()]
    values = [event["values"] for event in events if event["kind"] == "metrics" and "staleness/max" in event["values"]]
    assert len(values) == 4
    assert values[0]["staleness/lag_0_ratio"] > 0
    for step in values:
        assert sum(step[f"staleness/lag_{age}_ratio"] for age in range(3)) == pytest.approx(1)
        assert step["staleness/max"] <= 2


async def test_grpo_failed_background_load_fails_the_stage(stage: Callable[..., StageContext]) -> None:
    """With staleness, the error of a load in the background stops the stage after the update in progress."""

    def fail(version: str) -> None:
        if version == "g0-step-000002":
            raise StageFailed("EngineUnavailable", "all engines are unreachable", retryable=True)

    ctx, unread = stage(maxStaleness=1), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
    with pytest.raises(StageFailed, match="all engines are unreachable"):
        await run(ctx, SlowRollouts(on_push=fail))
    gc.collect()
    assert not unread, "asyncio would print that an exception was never retrieved"
    assert kept(ctx)[-1] in (2, 3), "the bound stops the trainer; the session writes a checkpoint"


async def test_grpo_rejected_weights_are_exported_again(stage: Callable[..., StageContext]) -> None:
    """If the engines reject a delta while every batch waits for it, the trainer exports the weights again."""
    ctx, rollouts = stage(maxStaleness=1), SlowRollouts(rejected=["g0-step-000001", "g0-step-000003"])
    async with asyncio.timeout(120):
        outcome = await run(ctx, rollouts)
    assert outcome.outcome == "completed"
    assert rollouts.pushed[-1] == "g0-step-000004"


@pytest.mark.parametrize("bound", [0, 2])
async def test_grpo_trained_batches_are_released(
    stage: Callable[..., StageContext], bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of the paper's size has 3 GB: when a step is trained, no earlier batch exists any more."""
    batches = list[weakref.ref[Batch]]()
    create = Batch.__init__

    def record(batch: Batch, *fields: Any, **named: Any) -> None:
        create(batch, *fields, **named)
        batches.append(weakref.ref(batch))

    monkeypatch.setattr(Batch, "__init__", record)
    alive = list[set[int]]()

    def on_step(_: FakeTrainerGroup) -> None:
        gc.collect()
        alive.append({batch.step for ref in batches if (batch := ref()) is not None})

    sampling = list[int]()

    async def before_sample() -> None:
        gc.collect()
        sampling.append(sum(ref() is not None for ref in batches))

    await run(stage(maxStaleness=bound), FakeRollouts(before_sample=before_sample), on_step=on_step)
    assert len(batches) == 4
    assert [min(steps) for steps in alive] == [0, 1, 2, 3], "only the present batch and later ones exist"
    assert bound or sampling == [0] * 4, "the next batch is sampled without the last one in memory"


async def test_grpo_early_finish_deletes_unused_batches(stage: Callable[..., StageContext], monkeypatch: Any) -> None:
    """A stage that finishes early deletes the batches that were sampled for later steps, also those being written."""
    seal, started = GroupLog.seal, []

    def seal_slowly(log: GroupLog, drawn: Sequence[str]) -> None:
        started.append(log._parquet.stem)
        time.sleep(1.0 * (started[-1] > "step-000002"))
        seal(log, drawn)

    monkeypatch.setattr(GroupLog, "seal", seal_slowly)
    ctx = stage(maxStaleness=3, advanceWhen={"truncationBelow": 0.5, "windowSteps": 2})
    outcome = await run(ctx, SlowRollouts())
    assert (outcome.reason, outcome.checkpoint and outcome.checkpoint.step) == ("TruncationSettled", 2)
    await asyncio.get_running_loop().shutdown_default_executor()  # no thread may write a file later
    names = sorted(path.name for path in ctx.folder.trajectories.iterdir())
    assert len(started) > 2 and names == ["step-000001.parquet", "step-000002.parquet"]


@pytest.mark.parametrize(
    ("solved", "drawn", "dies"), [("", 2, 0), ("0", 3, 0), ("0123", 4, 0), ("0", 3, 1), ("0", 3, 2)]
)
async def test_grpo_dynamic_sampling_replaces_equal_groups(
    stage: Callable[..., StageContext], solved: str, drawn: int, dies: int
) -> None:
    """Solved problems are replaced by others, up to all candidates; a crash at draw `dies` keeps complete groups."""

    class PartlySolved(FakeRollouts):
        draws: ClassVar[list[int]] = []
        finished = 0

        async def sample_groups(
            self, problems: Sequence[Problem], *, on_group: Callable[[list[Trajectory]], None], **more: Any
        ) -> None:
            self.draws.append(len(problems))
            groups = [[rollout(problem, sample) for sample in range(more["samples"])] for problem in problems]
            for group in groups:
                for trajectory in group:
                    if trajectory.prompt_id in solved:
                        trajectory.reward = 1.0
                on_group(group)
                PartlySolved.finished += 1
                if len(self.draws) == dies:
                    raise StageFailed("EngineUnavailable", "all engines are unreachable", retryable=True)

    ctx, rollouts = stage(dynamicSampling=True), PartlySolved()
    if dies:
        with pytest.raises(StageFailed):
            await run(ctx, rollouts)
        ctx = stage(dynamicSampling=True, attempt=2)
    assert (await run(ctx, rollouts)).outcome == "completed"
    files = trajectory_store.step_files(ctx.folder.trajectories)
    groups = [{row.prompt_id for row in trajectory_store.read(file)} for _, file in files]
    assert len(groups) == 4
    assert max(len(ids) for ids in groups) == drawn
    for ids in groups:
        assert len(ids - set(solved)) == (2 if solved != "0123" else 0)
    assert all(count <= 2 for count in rollouts.draws)
    assert PartlySolved.finished == sum(map(len, groups)), "no group is sampled twice"


@pytest.mark.parametrize(("start", "first"), [("Continue", "push"), ("New", "push_folder")])
async def test_grpo_serves_the_adapter_that_it_continues(
    stage: Callable[..., StageContext], new_attempt: NewAttempt, start: str, first: str
) -> None:
    """At step 0 the engines have the policy of the ranks: base and adapter, or the model folder of a new adapter."""

    class Rollouts(FakeRollouts):
        calls: ClassVar[list[tuple[str, str]]] = []

        async def push(self, group: FakeTrainerGroup, version: str) -> None:
            self.calls.append(("push", version))

        async def push_folder(self, folder: Path, version: str) -> None:
            self.calls.append(("push_folder", version))

    settings = {"promptsPerStep": 2, "rolloutsPerPrompt": 2, "keepPerPrompt": 2}
    for number in range(2):
        stage()  # writes the problems
        ctx = new_attempt(
            "gg", number, grpo=settings, trainer={"gpusPerReplica": 0, "lora": {"rank": 8, "start": start}}
        )
        Rollouts.calls.clear()
        write_model(ctx.folder.outcome_file, await run(ctx, Rollouts()))
    assert Rollouts.calls[:2] == [(first, "g1-step-000000"), ("push", "g1-step-000001")]
