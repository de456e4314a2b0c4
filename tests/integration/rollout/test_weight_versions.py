"""Weight versions in a real engine: bit equality after each update, damaged files, and the probe's refusals."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.weight_update import DeltaUpdate, FolderUpdate
from rstar2_train.weights import version_store
from rstar2_train.weights.shard_file import bit_sum, write_shards
from tests.support.engine import Engine
from tests.support.folder_hashes import folder_hashes
from tests.support.steady_requests import spanning, steady_requests
from tests.support.version_trainer import StagedSender, VersionTrainer, engine_hashes, rank, trainer

__all__ = ["rank", "trainer"]

PROMPT = [5, 77, 130, 9] * 10
TIMES = PoolTimes(patience=2, load=120, straggler=2, check_interval=0.5, retry_interval=0.2)


@pytest.fixture
async def pool(engine: Engine) -> AsyncIterator[EnginePool]:
    """A pool that gives up soon."""
    async with EnginePool([engine.url], token=engine.token, times=TIMES) as pool:
        yield pool


async def test_engine_weights_equal_the_trainers_after_each_update(
    pool: EnginePool, engine: Engine, trainer: VersionTrainer
) -> None:
    """Deltas, sparse and dense, a late host copy and a folder give the same hashes; equal weights pass the probe."""
    client = pool.client(engine.url)
    await pool.push(trainer.publish())
    for number, lr in enumerate((1e-9, 1e-3, 0.0)):
        trainer.update(lr)
        update = trainer.publish()
        assert update.probe is not None and update.probe.expects_change == (lr > 0)
        assert await pool.push(update) == [engine.url]
        assert await client.weight_version() == update.version
        folder = trainer.export(f"export-{number}")
        expected = folder_hashes(folder)
        actual = await engine_hashes(client)
        assert len(expected) > 8
        assert {name: actual[name] for name in expected} == expected
    await client.load_chain(update.chain, "late", version_id=update.version_id, seconds=60, fresh=True)
    assert (await engine_hashes(client)).items() >= expected.items()
    await pool.push(FolderUpdate.make(folder, "folder", trainer.probe()))
    assert (await engine_hashes(client)).items() >= expected.items()


async def test_engine_refuses_damaged_version_and_heals(
    pool: EnginePool, engine: Engine, trainer: VersionTrainer
) -> None:
    """A torn delta and a missing version change nothing in the engine; the next snapshot is loaded."""
    client = pool.client(engine.url)
    await pool.push(trainer.publish())
    before = await engine_hashes(client)
    trainer.update(1e-3)
    update = trainer.publish()
    (file,) = update.chain[-1].glob("*.shards")
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(EngineRejected, match="is damaged or truncated"):
        await pool.push(update)
    shutil.rmtree(update.chain[-1])
    trainer.update(1e-3)
    with pytest.raises(EngineRejected, match=r"manifest\.json is missing or damaged"):
        await pool.push(trainer.publish())
    assert await client.weight_version() == "v0"
    assert await engine_hashes(client) == before
    await pool.push(trainer.publish(snapshot=True))
    expected = folder_hashes(trainer.export("healed"))
    assert (await engine_hashes(client)).items() >= expected.items()


async def test_engine_generates_while_the_storage_hangs(
    pool: EnginePool, engine: Engine, trainer: VersionTrainer
) -> None:
    """A file that cannot be read until later stops no request; the version is loaded when it can be."""
    client = pool.client(engine.url)
    await pool.push(trainer.publish())
    trainer.update(1e-3)
    update = trainer.publish()
    (file,) = update.chain[-1].glob("*.shards")
    content = file.read_bytes()
    file.unlink()
    os.mkfifo(file)  # a reader waits until it has data
    load = client.load_chain(update.chain, update.version, version_id=update.version_id, seconds=120)
    loading = asyncio.create_task(load)
    with await opened_by_reader(file) as storage:
        sample = await client.generate([5, 6, 7], max_tokens=4, seed=1)
        assert len(sample.token_ids) > 0 and sample.versions[0][0] == "v0" and not loading.done()
        await asyncio.to_thread(storage.write, content)
    await loading
    assert await client.weight_version() == update.version
    assert (await engine_hashes(client)).items() >= folder_hashes(trainer.export("late")).items()


async def opened_by_reader(fifo: Path) -> BinaryIO:
    """Wait until a process reads a FIFO; return it, open for writing."""
    async with asyncio.timeout(120):
        while True:
            try:
                descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # fails without a reader
            except OSError:
                await asyncio.sleep(0.05)
            else:
                os.set_blocking(descriptor, True)
                return os.fdopen(descriptor, "wb")


def forge(update: DeltaUpdate, *, corrupt: str = "", empty: bool = False) -> DeltaUpdate:
    """Rewrite the last version as a faulty trainer would: with valid checksums and wrong content."""
    folder = update.chain[-1]
    manifest = version_store.read_manifest(folder)
    shards = []
    for file in version_store.read_files(version_store.Link(folder, manifest)):
        for shard in file.shards():
            if empty:
                continue
            if shard.name == corrupt:
                values = np.roll(shard.values, 1)
                shard = replace(shard, values=values, checksum=bit_sum(values))
            shards.append(shard)
    summary = write_shards(folder / manifest.files[0].name, shards)
    version_store.write_manifest(folder, replace(manifest, files=[summary]))
    return update


async def test_probe_refuses_an_update_that_was_not_applied(pool: EnginePool, trainer: VersionTrainer) -> None:
    """An engine that confirms the version but keeps its weights does not serve; the error names the reason."""
    await pool.push(trainer.publish())
    trainer.update(1e-3)
    with pytest.raises(EngineUnavailable, match=r"probe of version 'v1'.*the update was not applied"):
        await pool.push(forge(trainer.publish(), empty=True))
    assert pool.serving == []


async def test_probe_refuses_a_corrupted_tensor(pool: EnginePool, trainer: VersionTrainer) -> None:
    """One tensor with wrong values and right checksums is found by the log-probabilities."""
    await pool.push(trainer.publish())
    trainer.update(1e-3)
    update = forge(trainer.publish(), corrupt="model.layers.0.mlp.down_proj.weight")
    with pytest.raises(EngineUnavailable, match=r"probe.*the engine has other weights than the trainer"):
        await pool.push(update)
    await pool.push(trainer.publish(snapshot=True))


async def test_probe_refuses_an_update_of_other_weights(pool: EnginePool, trainer: VersionTrainer) -> None:
    """A sparse delta on weights that are not its base fails its checksum; a folder of an old version, the probe."""
    await pool.push(trainer.publish())
    old = trainer.export("old")
    trainer.update(1e-2)
    base = trainer.publish()
    trainer.update(1e-11)
    update = trainer.publish()
    manifest = version_store.read_manifest(update.chain[-1])
    first = version_store.read_manifest(update.chain[0])
    version_store.write_manifest(update.chain[-1], replace(manifest, base=first.id))
    with pytest.raises(EngineRejected, match="the changes were applied to other weights"):
        await pool.push(replace(update, chain=[update.chain[0], update.chain[-1]]))
    assert base.probe is not None
    with pytest.raises(EngineUnavailable, match="the engine has other weights than the trainer"):
        await pool.push(FolderUpdate.make(old, "v1", replace(base.probe, expects_change=False)))


async def test_collective_transfer_and_deltas_alternate(
    pool: EnginePool, engine: Engine, trainer: VersionTrainer
) -> None:
    """Weights from the trainer's memory, a delta on top of them, and a closed transfer are equal bit by bit."""
    client = pool.client(engine.url)
    await pool.push(trainer.publish())
    for transport in ("collective", "delta", "collective", "closed"):
        trainer.update(1e-3)
        if transport == "delta":
            await pool.push(trainer.publish())
        else:
            sender = StagedSender(trainer)
            sender.update.is_open = transport != "closed"
            await pool.push(sender.update)
            assert not sender.update.failures
            assert len(sender.ports) == (transport == "collective")
        expected = folder_hashes(trainer.export(f"export-{trainer.number}"))
        assert (await engine_hashes(client)).items() >= expected.items()


async def test_collective_hung_engine_falls_back_to_files(engine: Engine, trainer: VersionTrainer) -> None:
    """An engine that stops in the middle of a transfer costs its own group only, and reads the files afterwards."""

    def hang() -> None:
        engine.signal(signal.SIGSTOP)

    # The only engine is out of use for longer than the other tests' patience.
    async with EnginePool([engine.url], token=engine.token, times=replace(TIMES, patience=300)) as pool:
        client = pool.client(engine.url)
        await pool.push(trainer.publish())
        trainer.update(1e-3)
        sender = StagedSender(trainer, on_offer=hang, seconds=2)
        pushed = asyncio.create_task(pool.push(sender.update))
        try:
            async with asyncio.timeout(120):
                while not sender.update.failures:
                    await asyncio.sleep(0.05)
        finally:
            engine.signal(signal.SIGCONT)
        assert await pushed == [engine.url]
        assert list(sender.update.failures) == [engine.url]
        expected = folder_hashes(trainer.export("after"))
        assert (await engine_hashes(client)).items() >= expected.items()


async def test_collective_wrong_tensor_is_refused(pool: EnginePool, engine: Engine, trainer: VersionTrainer) -> None:
    """Bytes that change before the broadcast fail their checksum; the engine reads the files."""
    client = pool.client(engine.url)
    await pool.push(trainer.publish())
    trainer.update(1e-3)
    sender = StagedSender(trainer)
    folder = sender.update.delta.chain[-1]
    sender.sender.folder = folder
    sender.sender.files = [torch.from_numpy(np.fromfile(file, np.uint8)) for file in folder.glob("*.shards")]
    sender.sender.files[0][100] += 1
    await pool.push(sender.update)
    assert "500" in sender.update.failures[engine.url]
    expected = folder_hashes(trainer.export("after"))
    assert (await engine_hashes(client)).items() >= expected.items()


async def test_held_request_skips_refused_weights(pool: EnginePool, engine: Engine, trainer: VersionTrainer) -> None:
    """The probe runs before a request in flight continues: no token comes from weights that it refused."""
    client = pool.client(engine.url)
    loaded = trainer.publish()
    await pool.push(loaded)
    accepted = [loaded.version]

    async def update() -> None:
        trainer.update(1e-3)
        refused, later = forge(trainer.publish(), corrupt="model.embed_tokens.weight"), trainer.publish(snapshot=True)
        reason = rf"probe of version '{refused.version}'.*the engine has other weights"
        with pytest.raises(EngineUnavailable, match=reason):
            await pool.push(refused, keep_requests=True)
        before = len(finished)
        await asyncio.sleep(0.5)
        assert len(finished) == before, "a request has continued with the refused weights"
        assert pool.serving == []
        await pool.push(later, keep_requests=True)
        accepted.append(later.version)

    async with steady_requests(client, PROMPT) as finished:
        generations = await spanning(finished, update)
    for generation in generations:
        [(version, start)] = generation.versions[1:]
        assert [generation.versions[0][0], version] == accepted[-2:]
        assert 0 < start < len(generation.token_ids) == len(generation.logprobs)
    assert {generation.versions[0][0] for generation in finished} <= set(accepted)


async def test_collective_keeps_requests_in_flight(pool: EnginePool, engine: Engine, trainer: VersionTrainer) -> None:
    """A request spans a collective transfer; the engine then has the trainer's weights bit by bit."""
    client = pool.client(engine.url)
    loaded = trainer.publish()
    await pool.push(loaded)
    versions = [loaded.version]

    async def update() -> None:
        trainer.update(1e-3)
        sender = StagedSender(trainer)
        await pool.push(sender.update, keep_requests=True)
        assert not sender.update.failures
        versions.append(sender.update.version)

    async with steady_requests(client, PROMPT) as finished:
        generations = await spanning(finished, update)
    for generation in generations:
        assert [version for version, _ in generation.versions] == versions[-2:]
    expected = folder_hashes(trainer.export("after"))
    assert (await engine_hashes(client)).items() >= expected.items()
