"""Two vLLM engines on the CPU for bench/rollout_real.py, and the fit of a hardware model to them.

The KV cache has 32 whole budgets: a policy that ignores it overflows it. Each engine writes the tokens that it computes
again after a preemption to a file, because vLLM's metrics do not have them (`bench/vllm_recomputed.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.data.tiny.policy import HEAD, KEY_VALUE_HEADS, LAYERS, VOCABULARY, write_policy
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_statistics import EngineStatistics
from rstar2_train.inference.pool import EnginePool
from rstar2_train.simulation.hardware import Hardware, fit_decode
from tests.support.engine import Engine

ROOT = Path(__file__).parents[1]
ENGINES = 2
PROMPT_TOKENS, RESPONSE_TOKENS = 128, 1024
"""Longest prompt and budget: an eighth of the paper's."""
KV_TOKENS = 32 * RESPONSE_TOKENS
_TOKEN_BYTES = 2 * LAYERS * KEY_VALUE_HEADS * HEAD * 4
BATCHES = (1, 4, 16, 48)
"""Sequences of the batches of the fit."""
CONTEXTS = (32, 640)
"""Prompt tokens of the batches of the fit."""
STEPS = 320
"""Tokens that each sequence of the fit samples."""
LONG_PROMPT = 1000
REQUESTS = 48


def write_endless_policy(folder: Path) -> Path:
    """Write a tiny policy of random weights that ends no turn: each turn has as many tokens as it may have."""
    write_policy(folder, texts=["one two three"] * 50, seed=0)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        file = folder / name
        fields = json.loads(file.read_text(encoding="utf-8"))
        for key in ("eos_token", "eos_token_id"):
            fields.pop(key, None)
        if name == "config.json":
            fields |= {"max_position_embeddings": 2 * RESPONSE_TOKENS, "eos_token_id": None}
        file.write_text(json.dumps(fields), encoding="utf-8")
    return folder


@contextmanager
def engines(model: Path, folder: Path) -> Iterator[list[Engine]]:
    """Start the engines; `folder` receives their logs, and the tokens that they computed again."""
    job = AgenticRLJob.model_validate(
        {
            "metadata": {"name": "bench"},
            "spec": {
                "model": {"source": "m", "systemPrompt": "", "promptPrefix": ""},
                "accelerator": {"vendor": "None"},
                "rollout": {"engineArgs": {"kv-cache-memory-bytes": KV_TOKENS * _TOKEN_BYTES}},
                "stages": [
                    {
                        "name": "rl",
                        "type": "GRPO",
                        "grpo": {
                            "data": "d",
                            "steps": 1,
                            "maxPromptTokens": PROMPT_TOKENS,
                            "maxResponseTokens": RESPONSE_TOKENS,
                        },
                    }
                ],
            },
        }
    )
    plugin = folder / "plugin" / "rstar2_bench-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: rstar2-bench\nVersion: 1\n", encoding="utf-8")
    entry = "[vllm.general_plugins]\nrecomputed = bench.vllm_recomputed:register\n"
    (plugin / "entry_points.txt").write_text(entry, encoding="utf-8")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(plugin.parent), str(ROOT)])
    os.environ["RSTAR2_RECOMPUTED"] = str(_recomputed_file(folder))
    started = [Engine(model, folder=folder, job=job) for _ in range(ENGINES)]
    try:
        for engine in started:
            engine.token = started[0].token
            engine.start(wait=False)
        for engine in started:
            engine.wait()
        yield started
    finally:
        for engine in started:
            engine.kill()


def recomputed_tokens(folder: Path) -> int:
    """Return the tokens that all engines have computed again after preemptions."""
    file = _recomputed_file(folder)
    return sum(map(int, file.read_text(encoding="utf-8").split())) if file.exists() else 0


def _recomputed_file(folder: Path) -> Path:
    return folder / "recomputed"


def random_tokens(source: random.Random, count: int) -> list[int]:
    """Return random token ids; no prefix of two prompts is the same."""
    return [source.randrange(VOCABULARY // 2) for _ in range(count)]


def engine_client(pool: EnginePool, url: str) -> EngineClient:
    """Return the client of an engine, with the methods that the pool does not use."""
    client = pool.client(url)
    assert isinstance(client, EngineClient)
    return client


async def fit_hardware(clients: Sequence[EngineClient]) -> Hardware:
    """Return a hardware model of the engines, measured while all of them work: they share the cores."""
    limits = await clients[0].limits()
    samples = [
        sample
        for batch, prompt in itertools.product(BATCHES, CONTEXTS)
        for sample in await _decode(clients, batch, prompt)
    ]
    step, sequence, token = fit_decode(samples)
    short, long = await _seconds_per_request(clients, 32), await _seconds_per_request(clients, LONG_PROMPT)
    prefill = max(0.0, (long - short) / (LONG_PROMPT - 32))
    return Hardware(
        step_seconds=step,
        sequence_seconds=sequence,
        token_seconds=token,
        prefill_seconds=prefill,
        request_seconds=max(0.0, short - 32 * prefill),
        kv_tokens=limits.kv_tokens,
        block_tokens=limits.block_tokens,
        max_sequences=256,
        source=f"{len(clients)} vLLM engines on this machine",
    )


async def _decode(clients: Sequence[EngineClient], batch: int, prompt: int) -> list[tuple[float, float, float]]:
    """Return (sequences, tokens of KV cache, seconds per step) while all engines decode such a batch."""
    source = random.Random(f"{batch} {prompt}")
    statistics = EngineStatistics()
    requests = [
        asyncio.ensure_future(client.generate(random_tokens(source, prompt), max_tokens=STEPS, seed=at))
        for client in clients
        for at in range(batch)
    ]
    limits = await clients[0].limits()
    while not any(request.done() for request in requests):
        await asyncio.sleep(0.2)
        loads = [await client.load() for client in clients]
        for client, load in zip(clients, loads, strict=True):
            if load is not None and load.running == batch:
                statistics.add(client.url, load, kv_tokens=limits.kv_tokens, now=time.monotonic())
    await asyncio.gather(*requests)
    return [sample for sample in statistics.decode_samples if sample[0] == batch]


async def _seconds_per_request(clients: Sequence[EngineClient], prompt: int) -> float:
    """Return the seconds that one request of one token takes of an engine with many of them."""
    source = random.Random(prompt)
    prompts = [random_tokens(source, prompt) for _ in range(REQUESTS)]
    started = time.monotonic()
    await asyncio.gather(*(client.generate(each, max_tokens=1, seed=1) for client in clients for each in prompts))
    return (time.monotonic() - started) / REQUESTS
