"""Weight transports: the choice, the chain of a Delta transport, and a rejected delta that a snapshot replaces."""

import asyncio
import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.inference.engine_errors import EngineRejected
from rstar2_train.inference.weight_update import AdapterUpdate, DeltaUpdate, FolderUpdate, complete
from rstar2_train.orchestrator.context import StageContext
from rstar2_train.orchestrator.rollout_session import RolloutSession
from rstar2_train.orchestrator.weight_transports import (
    AdapterTransport,
    DeltaTransport,
    FolderTransport,
    choose_transport,
    make_transport,
)
from rstar2_train.weights import version_store
from rstar2_train.weights.adapter_check import verify_adapter
from rstar2_train.weights.adapter_folder import AdapterIdentity, tensor_name, write_adapter
from rstar2_train.weights.host_copy import HostCopy
from rstar2_train.weights.probe import TOLERANCE, Probe
from rstar2_train.weights.shard_file import Shard, bit_sum, write_shards
from rstar2_train.weights.version_store import VersionManifest
from tests.support.stage_attempt import NewAttempt


class FakeGroup:
    """A trainer of one tensor with one rank, without torch."""

    adapter = AdapterIdentity(base="b" * 64, rank=8, alpha=16, modules=("up_proj",))

    def __init__(self, folder: Path, *, dtype: str = "bfloat16") -> None:
        self.model_dir = folder
        self.version_dtype, self.probe_tolerance = dtype, TOLERANCE[dtype]
        self.bits = np.zeros(100, np.uint16)
        self._committed = self.bits
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"dtype": dtype, "vocab_size": 50}))

    def update(self) -> None:
        """Change one element."""
        self.bits = self.bits.copy()
        self.bits[7] += 1

    def start_versions(self) -> None:
        pass

    def publish(self, folder: Path, *, version: str, version_id: str, base: str | None) -> VersionManifest:
        folder.mkdir(parents=True)
        positions = None if base is None else np.flatnonzero(self.bits != self._committed)
        values = self.bits if positions is None else self.bits[positions]
        shard = Shard("w", (100,), "bfloat16", 0, 100, bit_sum(self.bits), positions, values)
        manifest = VersionManifest(version_id, version, base, [write_shards(folder / "rank-0000.shards", [shard])])
        version_store.write_manifest(folder, manifest)
        self._committed = self.bits
        return manifest

    def publish_adapter(self, folder: Path, *, version: str, version_id: str) -> VersionManifest:
        folder.mkdir(parents=True)
        layer = "model.layers.0.mlp.up_proj"
        tensors = {
            tensor_name(layer, "lora_A"): np.ones((8, 6), np.float32),
            tensor_name(layer, "lora_B"): np.full((4, 8), bit_sum(self.bits), np.float32),
        }
        files = write_adapter(folder, tensors, self.adapter, base=self.model_dir)
        manifest = VersionManifest(version_id, version, None, files)
        version_store.write_manifest(folder, manifest)
        return manifest

    def score(self, rows: list[list[int]]) -> tuple[list[list[float]], list[list[int]]]:
        return [[-1.0] * (len(row) - 1) for row in rows], [[bit_sum(self.bits)]]

    def export(self, folder: Path, *, for_engines: bool = False) -> None:
        folder.mkdir(parents=True)


def rollout(**fields: Any) -> RolloutSpec:
    return RolloutSpec.model_validate(fields)


def session_of(ctx: StageContext) -> RolloutSession:
    """Return a session with an engine that no test connects to."""
    ctx.endpoints = dataclasses.replace(ctx.endpoints, engines=("http://127.0.0.1:9",))
    chat_format: Any = None
    return RolloutSession(ctx, chat_format)


@pytest.mark.parametrize(
    ("wanted", "dtype", "name", "reason"),
    [
        ("Auto", "bfloat16", "Delta", "about 1 % of bfloat16 weights"),
        ("Auto", "float32", "Folder", "every float32 weight changes"),
        ("Folder", "bfloat16", "Folder", "set by spec.rollout"),
        ("Delta", "float32", "Delta", "set by spec.rollout"),
    ],
)
def test_choose_transport_names_the_reason(wanted: Any, dtype: str, name: str, reason: str) -> None:
    """Auto takes the dtype of the weights; a set transport is taken as it is."""
    chosen, given = choose_transport(wanted, dtype=dtype)
    assert chosen == name and reason in given


async def test_delta_transport_writes_periodic_snapshots(tmp_path: Path) -> None:
    """A host copy follows the chain; each snapshot starts a new one, and prune deletes the old one."""
    group: Any = FakeGroup(tmp_path / "model")
    weights = tmp_path / "weights"
    (weights / "rl-step-000001").mkdir(parents=True)
    transport = make_transport(
        rollout(weightTransport="Delta", weightSnapshotEvery=3), weights=weights, dtype=group.version_dtype
    )
    copy, lengths = HostCopy(), []
    for number in range(7):
        group.update()
        update = await transport.publish(group, f"v{number}")
        assert isinstance(update, DeltaUpdate) and update.probe is None
        copy.update(update.chain)
        assert (copy.arrays["w"] == group.bits).all()
        lengths.append(len(update.chain))
        transport.prune(update)
    assert lengths == [1, 2, 3, 1, 2, 3, 1]
    assert len(list((weights / "versions").iterdir())) == 2
    assert not (weights / "rl-step-000001").exists()


async def test_transport_new_trainer_starts_with_a_snapshot(tmp_path: Path) -> None:
    """The versions of a restarted trainer do not continue the chain of the earlier one; their numbers do."""
    transport = DeltaTransport(tmp_path, snapshot_every=10, probes=None)
    groups: list[Any] = [FakeGroup(tmp_path / "a"), FakeGroup(tmp_path / "b")]
    chains = [(await transport.publish(group, "v")).chain for group in groups]
    assert [len(chain) for chain in chains] == [1, 1]
    assert [chain[0].name[:6] for chain in chains] == ["000000", "000001"]


@pytest.mark.parametrize("name", ["Delta", "Folder"])
async def test_transport_probe_expects_a_change_only_of_weights(tmp_path: Path, name: str) -> None:
    """The first version and one with equal weights need not change the log-probabilities."""
    group: Any = FakeGroup(tmp_path / "model")
    transport = make_transport(
        rollout(weightTransport=name, weightProbe=True), weights=tmp_path / "w", dtype=group.version_dtype
    )
    expected = []
    for number, changes in enumerate([False, True, False]):
        if changes:
            group.update()
        probe = (await transport.publish(group, f"v{number}")).probe
        assert isinstance(probe, Probe) and probe.expected is not None
        expected.append(probe.expects_change)
    assert expected == [False, True, False]


async def test_session_rejected_delta_is_followed_by_a_snapshot(new_attempt: NewAttempt) -> None:
    """If the engines reject a delta, the same version is published again as a snapshot; a snapshot is not repeated."""
    ctx = new_attempt(rollout={"weightTransport": "Delta"})
    group: Any = FakeGroup(ctx.state.root.parent / "model")
    session = session_of(ctx)
    lengths: list[int] = []

    async def push(update: Any, **_: object) -> list[str]:
        lengths.append(len(update.chain))
        if len(update.chain) != 1 or rejects_all:
            raise EngineRejected("rank-0000.shards is damaged")
        return ["engine"]

    rejects_all = False
    session._pool.push = push  # type: ignore[method-assign]
    await session.weights.push(group, "v0")
    await session.weights.push(group, "v1")
    assert lengths == [1, 2, 1]
    rejects_all = True
    with pytest.raises(StageFailed, match="is damaged"):
        await session.weights.push(group, "v2")
    assert lengths == [1, 2, 1, 2, 1]


async def test_session_default_transport_is_a_folder(new_attempt: NewAttempt) -> None:
    """Without settings a version is a model folder without a probe, as before."""
    ctx = new_attempt()
    group: Any = FakeGroup(ctx.state.root.parent / "model")
    transport = session_of(ctx).weights._make_transport(group)
    assert isinstance(transport, FolderTransport)
    update = await transport.publish(group, "rl-step-000001")
    assert update == FolderUpdate.make(ctx.state.weights / "rl-step-000001", "rl-step-000001")


LORA = {"gpusPerReplica": 0, "lora": {"rank": 8, "alpha": 16, "targetModules": ["up_proj"]}}


async def test_session_with_lora_publishes_the_adapter_alone(new_attempt: NewAttempt) -> None:
    """Every version has a probe and names the base; it must differ from the base unless the adapter is zero."""
    ctx = new_attempt(trainer=LORA)
    group: Any = FakeGroup(ctx.state.root.parent / "model")
    weights = session_of(ctx).weights
    transport = weights._make_transport(group)
    assert isinstance(transport, AdapterTransport)
    (ctx.state.weights / "rl-step-000001").mkdir(parents=True)
    differs = []
    for number in range(4):
        update = await transport.publish(group, f"rl-step-00000{number}")
        assert isinstance(update, AdapterUpdate) and update.probe is not None
        assert update.base == weights._folder_update(group.model_dir, "g0-step-000000") and update.base.base_name
        assert verify_adapter(update.order) == {"model.layers.0.mlp.up_proj": (4, 6)}
        differs.append(update.probe.has_adapter)
        transport.prune(update)
        group.update()
    assert differs == [False, True, True, True]
    assert len(list((ctx.state.weights / "versions").iterdir())) == 2
    assert not (ctx.state.weights / "rl-step-000001").exists()
    other = session_of(ctx).weights._folder_update(group.model_dir, "g0-step-000000")
    assert other.base_name != update.base.base_name, "another attempt may have another folder at the path"


async def test_session_rejected_adapter_is_written_once_more(new_attempt: NewAttempt) -> None:
    """A damaged file costs one more write; an adapter that the engines reject again fails the stage."""
    ctx = new_attempt(trainer=LORA)
    group: Any = FakeGroup(ctx.state.root.parent / "model")
    session = session_of(ctx)
    pushed: list[str] = []

    async def push(update: Any, **_: object) -> list[str]:
        pushed.append(update.order.folder)
        if len(pushed) == 1 or rejects_all:
            raise EngineRejected("adapter_model.safetensors is damaged")
        return ["engine"]

    rejects_all = False
    session._pool.push = push  # type: ignore[method-assign]
    await session.weights.push(group, "v1")
    assert len(set(pushed)) == 2
    rejects_all = True
    with pytest.raises(StageFailed, match="is damaged"):
        await session.weights.push(group, "v2")
    assert len(set(pushed)) == 4


class BusyGroup(FakeGroup):
    """A trainer that scores the probe until the engines have done something, and must not be called meanwhile."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.engines, self.called = threading.Event(), threading.Event()
        """Set when the engines load a version; set by a call during a score."""
        self.is_lost = self._is_scoring = False

    def publish_adapter(self, folder: Path, **version: Any) -> VersionManifest:
        if self._is_scoring:
            self.called.set()
        return super().publish_adapter(folder, **version)

    def score(self, rows: list[list[int]]) -> tuple[list[list[float]], list[list[int]]]:
        self._is_scoring = True
        assert self.engines.wait(60), "the engines load no version during the score"
        assert not self.called.wait(0.2), "the ranks score, and got another call"
        self._is_scoring = False
        if self.is_lost:
            raise StageFailed("RanksLost", "a rank was killed", retryable=True)
        return super().score(rows)


@pytest.mark.parametrize(("fault", "error"), [("", ""), ("engine", "is damaged"), ("trainer", "a rank was killed")])
async def test_session_engines_load_while_the_ranks_score(new_attempt: NewAttempt, fault: str, error: str) -> None:
    """The push ends with both; a rejection waits for the ranks, and a lost rank does not wait for the engines."""
    ctx = new_attempt(trainer=LORA)
    group: Any = BusyGroup(ctx.state.root.parent / "model")
    group.is_lost = fault == "trainer"
    session = session_of(ctx)
    probes: list[Any] = []

    async def push(update: Any, **_: object) -> list[str]:
        probes.append(update.probe)
        group.engines.set()
        if fault == "engine":
            raise EngineRejected("adapter_model.safetensors is damaged")
        if fault == "trainer":
            await asyncio.Event().wait()
        return ["engine"]

    session._pool.push = push  # type: ignore[method-assign]
    async with asyncio.timeout(120):
        if not error:
            await session.weights.push(group, "v1")
            assert (await complete(probes[0])).expected is not None
            return
        with pytest.raises(StageFailed, match=error):
            await session.weights.push(group, "v1")


async def test_transport_scores_before_the_next_step_trains(new_attempt: NewAttempt) -> None:
    """The trainer's next step, and its sleep on a shared device, follow an export: the probe is complete."""
    ctx = new_attempt(trainer=LORA)
    group: Any = FakeGroup(ctx.state.root.parent / "model")
    weights = session_of(ctx).weights
    await weights.export(group, "v1")
    assert weights._exported is not None and isinstance(weights._exported.probe, Probe)
