"""Weights pushed into a running engine: exact and confirmed, also after bad folders and failures."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.utils.ports import free_ports
from tests.support.engine import Engine
from tests.support.engine_fixtures import Models
from tests.support.steady_requests import spanning, steady_requests

PROMPT = [5, 77, 130, 9, 41, 8, 300] * 10
"""Longer than two blocks of the prefix cache."""
TOLERANCE = 1e-4


async def engine_and_reference(
    client: EngineClient, model: Path, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of 40 sampled tokens, from the engine and from the model in transformers."""
    generation = await client.generate(PROMPT, max_tokens=40, seed=seed, stop_ids=[])
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.tensor([PROMPT + generation.token_ids.tolist()])
    with torch.no_grad():
        logits = reference(ids).logits[0, len(PROMPT) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
    return torch.tensor(generation.logprobs), expected


async def error(client: EngineClient, model: Path) -> float:
    """Return the largest difference of a log-probability."""
    engine, expected = await engine_and_reference(client, model)
    return float((engine - expected).abs().max())


async def test_push_several_times_stays_exact(pool: EnginePool, client: EngineClient, models: Models) -> None:
    """The prompt is the same each time: stale keys and values, or a stale head, would change its log-probabilities."""
    for number, folder in enumerate([models.memorising, models.other, models.memorising, models.boot]):
        version = f"test/{number}"
        assert await pool.push(FolderUpdate.make(folder, version)) == [client.url]
        assert await client.weight_version() == version
        assert await error(client, folder) < TOLERANCE
    assert await error(client, models.other) > 100 * TOLERANCE


async def test_vllm_reload_alone_leaves_a_stale_head(pool: EnginePool, client: EngineClient, models: Models) -> None:
    """vLLM's own reload leaves the old tied head; the worker extension repairs it."""
    await pool.push(FolderUpdate.make(models.boot, "stale/0"))
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(models.memorising)}}
    await client.post("/collective_rpc", body, seconds=60)
    await client.call("POST", "/reset_prefix_cache?reset_running_requests=true", seconds=60)
    assert await error(client, models.memorising) > 0.1
    await pool.push(FolderUpdate.make(models.memorising, "stale/1"))
    assert await error(client, models.memorising) < TOLERANCE


async def test_generate_reports_the_weight_version(pool: EnginePool, client: EngineClient, models: Models) -> None:
    """Each generation has the version that sampled it, and one log-probability per token."""
    for version in ("a/1", "a/2"):
        await pool.push(FolderUpdate.make(models.boot, version))
        generation = await client.generate(PROMPT, max_tokens=3, seed=1)
        assert generation.versions[0][0] == version
        assert len(generation.token_ids) == len(generation.logprobs) == 3
        assert generation.finish_reason == "length"


def edited(source: Path, target: Path, **changes: torch.Tensor | None) -> Path:
    """Copy a model folder with tensors changed, added or (None) removed; `__` in a name is a dot."""
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
    """Copy a model folder and truncate its weights file."""
    shutil.copytree(source, target)
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return target


async def test_push_bad_folder_is_rejected(
    pool: EnginePool, client: EngineClient, models: Models, tmp_path: Path
) -> None:
    """A bad folder is rejected with its fault; the engine keeps the old weights and accepts a later push."""
    await pool.push(FolderUpdate.make(models.memorising, "good"))
    (tmp_path / "empty").mkdir()
    index = tmp_path / "index"
    index.mkdir()
    (index / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "part-1.safetensors"}}))
    bad = {
        tmp_path / "missing": "is not a folder",
        tmp_path / "empty": "has no safetensors",
        index: r"part-1\.safetensors cannot be read",
        torn(models.boot, tmp_path / "torn"): "cannot be read",
        edited(models.boot, tmp_path / "less", model__norm__weight=None): r"lacks tensor 'model\.norm\.weight'",
        edited(models.boot, tmp_path / "more", extra=torch.zeros(1)): "has an unknown tensor 'extra'",
        edited(models.boot, tmp_path / "shape", model__norm__weight=torch.zeros(3)): r"has shape \(3,\)",
    }
    for number, (folder, message) in enumerate(bad.items()):
        with pytest.raises(EngineRejected, match=message):
            await pool.push(FolderUpdate.make(folder, f"bad/{number}"))
        assert pool.serving == []
        assert await client.healthy()
    assert await client.weight_version() == "good"
    assert await error(client, models.memorising) < TOLERANCE
    await pool.push(FolderUpdate.make(models.other, "good again"))
    assert await error(client, models.other) < TOLERANCE


async def test_push_does_not_wait_for_dead_engines(engine: Engine, models: Models) -> None:
    """Of three engines one serves; the second refuses connections, the third accepts them and never responds."""
    hung = await asyncio.start_server(lambda *_: asyncio.sleep(3600), "127.0.0.1", 0)
    port = hung.sockets[0].getsockname()[1]
    urls = [engine.url, f"http://127.0.0.1:{free_ports(1)[0]}", f"http://127.0.0.1:{port}"]
    times = PoolTimes(patience=60, load=60, straggler=0.5, check_interval=0.5, retry_interval=0.2)
    async with EnginePool(urls, token=engine.token, times=times) as pool:
        assert await pool.push(FolderUpdate.make(models.boot, "three")) == [engine.url]
        assert pool.admission.engines == [engine.url]
    hung.close()


async def test_push_without_engine_raises() -> None:
    """The pool gives up after its patience, and needs at least one address."""
    times = PoolTimes(patience=1, load=5, straggler=1, check_interval=0.2, retry_interval=0.1)
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with EnginePool([url], token="x" * 16, times=times) as pool:
        with pytest.raises(EngineUnavailable, match=r"no engine has served for .*does not respond"):
            await pool.push(FolderUpdate.make(Path("/nowhere"), "v"))
    with pytest.raises(ValueError, match="at least one engine"):
        EnginePool([], token="x" * 16)


async def test_pool_reloads_an_engine_with_other_weights(
    pool: EnginePool, client: EngineClient, models: Models
) -> None:
    """A restarted engine has another version: the pool loads the current one again."""
    await pool.push(FolderUpdate.make(models.memorising, "current"))
    await client.load_weights(models.other, "default", seconds=60)
    async with asyncio.timeout(300):
        while await client.weight_version() != "current" or not pool.serving:
            await asyncio.sleep(0.1)
    assert await error(client, models.memorising) < TOLERANCE


async def test_engine_routes_require_the_token(engine: Engine) -> None:
    """Every route of a real engine except health and metrics requires the token."""
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


async def test_generate_invalid_request_is_rejected(pool: EnginePool, client: EngineClient, models: Models) -> None:
    """An invalid request raises EngineRejected and does not harm the engine."""
    await pool.push(FolderUpdate.make(models.boot, "v"))
    for prompt, most, seed in (([10**6], 1, 0), ([], 1, 0), ([1] * 600, 1, 0), ([1], -1, 0)):
        with pytest.raises(EngineRejected, match="400"):
            await client.generate(prompt, max_tokens=most, seed=seed)
    assert await client.healthy()
    limits = await client.limits()
    assert limits.max_model_len == 512
    assert limits.block_tokens == 32
    assert limits.kv_tokens % 32 == 0 and limits.kv_tokens > 10_000


async def test_pool_discovers_and_drops_engines(engine: Engine, models: Models) -> None:
    """Two addresses of one engine, its own and a proxy's, appear and disappear in the discovery."""
    urls: set[str] = set()

    async def find() -> frozenset[str]:
        return frozenset(urls)

    connections: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", engine.port)
        connections.extend((writer, down))
        await asyncio.gather(copy(reader, down), copy(up, writer), return_exceptions=True)

    proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
    second = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    times = PoolTimes(
        patience=1,
        discovery_patience=120,
        load=60,
        straggler=0.5,
        check_interval=0.2,
        retry_interval=0.2,
        discovery_interval=0.1,
    )
    async with EnginePool(token=engine.token, find=find, times=times) as pool:
        pushed = asyncio.create_task(pool.push(FolderUpdate.make(models.boot, "discovered")))
        await asyncio.sleep(2)  # longer than the patience for fixed addresses
        assert not pushed.done()
        urls.add(engine.url)
        assert await pushed == [engine.url]
        urls.add(second)
        await until(lambda: set(pool.serving) == {engine.url, second})
        urls.clear()  # not discovered, but healthy: a terminating pod, or a late probe
        await asyncio.sleep(1)
        assert set(pool.serving) == {engine.url, second}
        proxy.close()
        for connection in connections:
            connection.close()
        await until(lambda: pool.serving == [engine.url])
        with pytest.raises(EngineUnavailable, match="has left the pool"):
            pool.client(second)
        urls.add(engine.url)
        assert await pool.push(FolderUpdate.make(models.other, "again")) == [engine.url]


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.05)


async def test_push_keeps_requests_in_flight(pool: EnginePool, client: EngineClient, models: Models) -> None:
    """A request spans an update: each token has the log-probability of the model that its version names."""
    loaded = {"flight/0": models.boot}

    async def update() -> None:
        version = f"flight/{len(loaded)}"
        loaded[version] = (models.boot, models.other)[len(loaded) % 2]
        assert await pool.push(FolderUpdate.make(loaded[version], version), keep_requests=True) == [client.url]

    await pool.push(FolderUpdate.make(models.boot, "flight/0"))
    async with steady_requests(client, PROMPT) as finished:
        generations = await spanning(finished, update)
    for generation in generations:
        [(later, start)] = generation.versions[1:]
        assert [generation.versions[0][0], later] == list(loaded)[-2:]
        assert 0 < start < len(generation.token_ids)
        for version, tokens in ((generation.versions[0][0], slice(0, start)), (later, slice(start, None))):
            reference = AutoModelForCausalLM.from_pretrained(loaded[version], dtype=torch.float32)
            with torch.no_grad():
                logits = reference(torch.tensor([PROMPT + generation.token_ids.tolist()])).logits[
                    0, len(PROMPT) - 1 : -1
                ]
            expected = logits.log_softmax(-1).gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
            assert float((torch.tensor(generation.logprobs) - expected)[tokens].abs().max()) < TOLERANCE
