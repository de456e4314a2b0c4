"""Weights pushed into a running engine: exactly those, all of them, confirmed; and nothing can break it."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM

from rstar2_train.inference.client import EngineClient, EngineRejected, EngineUnavailable
from rstar2_train.inference.pool import EnginePool, PoolTimes
from tests.support.engine import Engine, free_port
from tests.support.engine_fixtures import Models

PROMPT = [5, 77, 130, 9, 41, 8, 300] * 10
"""Longer than two blocks of the prefix cache."""
TOLERANCE = 1e-4


async def sampled_and_true(client: EngineClient, model: Path, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of 40 sampled tokens, as the engine reports them and as `model` gives them."""
    generation = await client.generate(PROMPT, max_tokens=40, seed=seed, stop_ids=[])
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([PROMPT + generation.token_ids])
    with torch.no_grad():
        logits = reference(ids).logits[0, len(PROMPT) - 1 : -1]
    true = logits.log_softmax(-1).gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
    return torch.tensor(generation.logprobs), true


async def error(client: EngineClient, model: Path) -> float:
    """Largest difference of a log-prob."""
    engine, true = await sampled_and_true(client, model)
    return float((engine - true).abs().max())


async def test_there_and_back_again_with_a_tied_head(pool: EnginePool, client: EngineClient, models: Models) -> None:
    """The same prompt each time: keys and values of the old weights would show as well as a stale head would."""
    for number, folder in enumerate([models.memorising, models.other, models.memorising, models.boot]):
        version = f"test/{number}"
        assert await pool.update_weights(folder, version) == [client.url]
        assert await client.weight_version() == version
        assert await error(client, folder) < TOLERANCE
    assert await error(client, models.other) > 100 * TOLERANCE


async def test_without_our_repacking_the_head_would_be_stale(
    pool: EnginePool, client: EngineClient, models: Models
) -> None:
    """vLLM's own reload, which ours builds on, leaves the old head: this is what the extension is for."""
    await pool.update_weights(models.boot, "stale/0")
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(models.memorising)}}
    await client._post("/collective_rpc", body, seconds=60)
    await client._call("POST", "/reset_prefix_cache?reset_running_requests=true", seconds=60)
    assert await error(client, models.memorising) > 0.1
    await pool.update_weights(models.memorising, "stale/1")
    assert await error(client, models.memorising) < TOLERANCE


async def test_the_version_is_reported_with_every_generation(
    pool: EnginePool, client: EngineClient, models: Models
) -> None:
    for version in ("a/1", "a/2"):
        await pool.update_weights(models.boot, version)
        generation = await client.generate(PROMPT, max_tokens=3, seed=1)
        assert generation.weight_version == version
        assert len(generation.token_ids) == len(generation.logprobs) == 3
        assert generation.finish_reason == "length"


def edited(source: Path, target: Path, **changes: torch.Tensor | None) -> Path:
    """A copy of a model folder with tensors changed, added or (None) left out; `__` stands for a dot."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        tensors.pop(key, None)
        if tensor is not None:
            tensors[key] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def torn(source: Path, target: Path) -> Path:
    """A copy whose weights file was cut off."""
    shutil.copytree(source, target)
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return target


async def test_a_bad_folder_is_refused_and_the_engine_lives(
    pool: EnginePool, client: EngineClient, models: Models, tmp_path: Path
) -> None:
    await pool.update_weights(models.memorising, "good")
    (tmp_path / "empty").mkdir()
    index = tmp_path / "index"
    index.mkdir()
    (index / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "part-1.safetensors"}}))
    bad = {
        tmp_path / "missing": "is not a folder",
        tmp_path / "empty": "holds no safetensors",
        index: r"part-1\.safetensors cannot be read",
        torn(models.boot, tmp_path / "torn"): "cannot be read",
        edited(models.boot, tmp_path / "less", model__norm__weight=None): r"lacks tensor 'model\.norm\.weight'",
        edited(models.boot, tmp_path / "more", extra=torch.zeros(1)): "has an unknown tensor 'extra'",
        edited(models.boot, tmp_path / "shape", model__norm__weight=torch.zeros(3)): r"has shape \(3,\)",
    }
    for number, (folder, why) in enumerate(bad.items()):
        with pytest.raises(EngineRejected, match=why):
            await pool.update_weights(folder, f"bad/{number}")
        assert pool.serving == []
        assert await client.healthy()
    assert await client.weight_version() == "good"
    assert await error(client, models.memorising) < TOLERANCE
    await pool.update_weights(models.other, "good again")
    assert await error(client, models.other) < TOLERANCE


async def test_a_dead_engine_holds_up_nobody(engine: Engine, models: Models) -> None:
    """One engine of three answers: nothing listens at the second, the third takes connections and says nothing."""
    hung = await asyncio.start_server(lambda *_: asyncio.sleep(3600), "127.0.0.1", 0)
    port = hung.sockets[0].getsockname()[1]
    urls = [engine.url, f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{port}"]
    times = PoolTimes(patience=60, load=60, straggler=0.5, check=0.5, retry=0.2)
    async with EnginePool(urls, token=engine.token, times=times) as pool:
        assert await pool.update_weights(models.boot, "three") == [engine.url]
        assert pool.admission.engines == [engine.url]
    hung.close()


async def test_with_no_engine_the_wait_ends() -> None:
    times = PoolTimes(patience=1, load=5, straggler=1, check=0.2, retry=0.1)
    url = f"http://127.0.0.1:{free_port()}"
    async with EnginePool([url], token="x" * 16, times=times) as pool:
        with pytest.raises(EngineUnavailable, match=r"no engine has served for .*does not answer"):
            await pool.update_weights(Path("/nowhere"), "v")
    with pytest.raises(ValueError, match="at least one engine"):
        EnginePool([], token="x" * 16)


async def test_an_engine_with_other_weights_than_asked_is_brought_up_to_date(
    pool: EnginePool, client: EngineClient, models: Models
) -> None:
    """What a restart looks like from here: the engine answers, and its version is not ours."""
    await pool.update_weights(models.memorising, "wanted")
    await client.load_weights(models.other, "default", seconds=60)
    async with asyncio.timeout(60):
        while await client.weight_version() != "wanted" or not pool.serving:
            await asyncio.sleep(0.1)
    assert await error(client, models.memorising) < TOLERANCE


async def test_every_route_but_probes_asks_for_the_token(engine: Engine) -> None:
    routes = ["/collective_rpc", "/pause", "/resume", "/update_weight_version", "/reset_prefix_cache", "/sleep"]
    routes += ["/rstar2/generate", "/inference/v1/generate", "/v1/completions", "/abort_requests", "/update_weights"]
    async with aiohttp.ClientSession() as session:
        for route in routes:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                async with session.post(engine.url + route, json={}, headers=headers) as response:
                    assert response.status == 401, route
        for route in ("/openapi.json", "/server_info", "/v1/models"):
            async with session.get(engine.url + route) as response:
                assert response.status == 401, route
        for route in ("/health", "/metrics"):
            async with session.get(engine.url + route) as response:
                assert response.status == 200, route


async def test_requests_at_fault_are_told_from_engines_at_fault(
    pool: EnginePool, client: EngineClient, models: Models
) -> None:
    await pool.update_weights(models.boot, "v")
    for prompt, most, seed in (([10**6], 1, 0), ([], 1, 0), ([1] * 300, 1, 0), ([1], -1, 0)):
        with pytest.raises(EngineRejected, match="400"):
            await client.generate(prompt, max_tokens=most, seed=seed)
    assert await client.healthy()
    limits = await client.limits()
    assert limits.max_model_len == 264
    assert limits.block_tokens == 32
    assert limits.kv_tokens % 32 == 0 and limits.kv_tokens > 10_000


async def test_engines_come_and_go(engine: Engine, models: Models) -> None:
    """Two ways to one engine, found and lost as a cluster's name service tells it: its own port, and a proxy's."""
    there: set[str] = set()

    async def find() -> frozenset[str]:
        return frozenset(there)

    connections: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", engine.port)
        connections.extend((writer, down))
        await asyncio.gather(copy(reader, down), copy(up, writer), return_exceptions=True)

    proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
    second = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    times = PoolTimes(patience=1, arrival=120, load=60, straggler=0.5, check=0.2, retry=0.2, look=0.1)
    async with EnginePool(token=engine.token, find=find, times=times) as pool:
        pushed = asyncio.create_task(pool.update_weights(models.boot, "found"))
        await asyncio.sleep(2)  # longer than the patience with engines that are given by address
        assert not pushed.done()
        there.add(engine.url)
        assert await pushed == [engine.url]
        there.add(second)
        await until(lambda: set(pool.serving) == {engine.url, second})
        there.clear()  # not found any more, but well: a pod that is ending, or whose probe is late
        await asyncio.sleep(1)
        assert set(pool.serving) == {engine.url, second}
        proxy.close()
        for connection in connections:
            connection.close()
        await until(lambda: pool.serving == [engine.url])
        with pytest.raises(EngineUnavailable, match="is gone"):
            pool.client(second)
        there.add(engine.url)
        assert await pool.update_weights(models.other, "again") == [engine.url]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.05)
