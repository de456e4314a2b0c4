"""The key `weights`: bytes and seconds per update of two real engines, by Folder, Delta and Collective (gloo).

A Qwen3-shaped bfloat16 model with random weights is trained by GRPO steps of AdamW at a learning rate of 1e-6 with two
ranks. Each transport carries its own steps. After every update the SHA-256 of every parameter in both
engines is compared with the trainer's export; the hashes of earlier loads are deleted before.

The seconds are medians, from the end of a step until both engines serve the version. The engines hash their parameters
while they load, which costs all transports the same. The probe is not timed; its largest difference between engine and
trainer is part of the result. The rows of each transport are saved under `.rstar2/`, so that a stopped benchmark
resumes with the next transport.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from bench.pipeline_runs import runs_folder
from bench.rollout_engines import engine_client
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.data.tiny.policy import write_policy
from rstar2_train.inference.parameter_hashes import ENABLED
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.weight_update import CollectiveUpdate, DeltaUpdate, FolderUpdate, WeightUpdate, complete
from rstar2_train.orchestrator.weight_transports import ProbeWriter, WeightTransport, make_transport
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.trainer.types import OptimizerConfig, TokenSequence, TrainConfig
from rstar2_train.utils.files import write_atomically
from rstar2_train.utils.ports import free_ports
from rstar2_train.weights import version_store
from rstar2_train.weights.probe import mean_difference
from tests.support.folder_hashes import folder_hashes

LR = 1e-6
ENGINES = 2
TRANSPORTS = ("Collective", "Delta", "Folder")
FULL = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "vocab_size": 32768, "steps": 10}
"""507 million parameters, with the head untied."""
QUICK = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "vocab_size": 8192, "steps": 3}
BOOT_SECONDS = 600
ENGINE_JOB = AgenticRLJob.model_validate(
    {
        "metadata": {"name": "bench"},
        "spec": {
            "model": {"source": "m", "systemPrompt": "", "promptPrefix": ""},
            "accelerator": {"vendor": "None"},
            "rollout": {
                "weightTransport": "Collective",
                "engineArgs": {"dtype": "bfloat16", "kv-cache-memory-bytes": 64 * 2**20, "max-num-seqs": 4},
            },
            "stages": [
                {
                    "name": "rl",
                    "type": "GRPO",
                    "grpo": {"data": "d", "steps": 1, "maxPromptTokens": 64, "maxResponseTokens": 64},
                }
            ],
        },
    }
)
TIMES = PoolTimes(patience=300, load=600, straggler=300)


def measure(*, quick: bool) -> dict[str, Any]:
    """Return `{folder, delta, collective, equal, ...}` of the full or the small model."""
    shape = dict(QUICK if quick else FULL)
    steps = shape.pop("steps")
    saved = SavedRows(runs_folder(quick=quick) / "weights.json", {**shape, "steps": steps, "lr": LR})
    if saved.missing:
        _run(saved, shape, steps=steps)
    return {"lr": LR, "engines": ENGINES} | saved.results()


class SavedRows:
    """The measured rows of each transport, on disk."""

    def __init__(self, path: Path, settings: dict[str, float]) -> None:
        """Read the file, unless it belongs to other settings."""
        self._path, self._settings = path, settings
        saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._transports: dict[str, dict[str, Any]] = saved["transports"] if saved.get("settings") == settings else {}

    @property
    def missing(self) -> list[str]:
        """Transports without rows."""
        return [name for name in TRANSPORTS if name not in self._transports]

    def add(self, name: str, rows: list[dict[str, Any]], **figures: float) -> None:
        """Save the rows of a transport, and figures of its run."""
        self._transports[name] = {"rows": rows, **figures}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {"settings": self._settings, "transports": self._transports}
        write_atomically(self._path, json.dumps(content, indent=1))

    def results(self) -> dict[str, Any]:
        """Return the figures of all transports."""
        runs = self._transports
        results: dict[str, Any] = {name.lower(): _summary(runs[name]["rows"]) for name in TRANSPORTS}
        results["delta"]["bytes_vs_folder"] = round(results["delta"]["bytes"] / results["folder"]["bytes"], 4)
        return results | {
            "steps": self._settings["steps"],
            "equal": all(row["equal"] for run in runs.values() for row in run["rows"]),
            "probe_difference": max(run["probe_difference"] for run in runs.values()),
            **{name: runs[TRANSPORTS[0]][name] for name in ("parameters", "model_bytes")},
        }


def _run(saved: SavedRows, shape: dict[str, int], *, steps: int) -> None:
    """Measure the missing transports, with new engines and ranks."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-bench-")))
        model = folder / "model"
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as writer:  # its memory ends with it
            parameters = writer.submit(write_model, model, shape).result()
        # Ranks and engines give freed tensors back: the full form needs most of 24 GiB.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
        token = secrets.token_urlsafe(24)
        urls = [start_engine(stack, model, folder, token) for _ in range(ENGINES)]
        config = TrainConfig(tokens_per_micro_batch=512, logprob_chunk_tokens=128, threads=1)
        group = stack.enter_context(TrainerGroup(ranks=2, config=config))
        group.load(model, optimizer=OptimizerConfig())
        for url in urls:
            wait_for(url)
        asyncio.run(_measure(group, folder, urls, token, saved, steps=steps, parameters=parameters))


def write_model(folder: Path, shape: dict[str, int]) -> int:
    """Write a random bfloat16 model and a tokenizer; return the number of parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    write_policy(folder, texts=["one two three"] * 50, seed=0)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    torch.manual_seed(0)
    config = Qwen3Config(
        **shape,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


async def _measure(
    group: TrainerGroup,
    folder: Path,
    urls: list[str],
    token: str,
    saved: SavedRows,
    *,
    steps: int,
    parameters: int,
) -> None:
    """Run the steps of each missing transport, load the weights of each step, and save the rows."""
    model_bytes = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    async with EnginePool(urls, token=token, times=TIMES) as pool:
        for name in saved.missing:
            # One transport after the other: the ranks keep the base of one chain of deltas.
            transport = _transport(group, folder / name, name)
            # The first version of a chain is a snapshot; it is not one of the measured updates.
            await _update(group, pool, transport, f"{name}-0")
            rows = []
            for step in range(1, steps + 1):
                await asyncio.to_thread(train, group, TRANSPORTS.index(name) * steps + step)
                expected = await _expected(group, folder / "export")
                for url in urls:
                    await engine_client(pool, url)._call_workers("rstar2_clear_hashes", seconds=120)
                row = await _update(group, pool, transport, f"{name}-{step}")
                row["equal"] = await _is_equal(expected, pool, urls)
                print(name, json.dumps(row), file=sys.stderr, flush=True)
                rows.append(row)
            shutil.rmtree(folder / name, ignore_errors=True)
            difference = await _probe_difference(group, pool, urls)
            saved.add(name, rows, probe_difference=difference, parameters=parameters, model_bytes=model_bytes)


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "bytes": round(fmean(row["bytes"] for row in rows)),
        "seconds": round(median(row["seconds"] for row in rows), 3),
        "publish_seconds": round(median(row["publish_seconds"] for row in rows), 3),
        "updates": rows,
    }


def _transport(group: TrainerGroup, weights: Path, name: str) -> WeightTransport:
    rollout = RolloutSpec.model_validate({"weightTransport": name})
    return make_transport(rollout, weights=weights, dtype=group.version_dtype)


def train(group: TrainerGroup, step: int, *, lr: float = LR) -> None:
    """Run one GRPO step with new random rollouts."""
    draw = random.Random(step)

    def sequence(member: int) -> TokenSequence:
        ids = [draw.randrange(8192) for _ in range(24)]
        return TokenSequence(
            np.array(ids, np.int32),
            np.arange(24) >= 8,
            engine_logprobs=np.full(24, -10.0, np.float32),
            advantage=draw.gauss(0, 1),
        )

    groups = [[sequence(member) for member in range(2)] for _ in range(2)]
    group.grpo_step(groups, lr=lr, settings=GRPOSettings(), seed=step)


async def _update(group: TrainerGroup, pool: EnginePool, transport: WeightTransport, version: str) -> dict[str, Any]:
    """Publish and push one version to all engines; return its bytes and seconds."""
    started = time.perf_counter()
    update = await transport.publish(group, version)
    published = time.perf_counter()
    serving = await pool.push(update)
    finished = time.perf_counter()
    size = _bytes(update)
    if len(serving) != ENGINES or (isinstance(update, CollectiveUpdate) and update.failures):
        failures = update.failures if isinstance(update, CollectiveUpdate) else {}
        raise RuntimeError(f"version {version} is served by {serving}; failed transfers: {failures}")
    await asyncio.to_thread(transport.prune, update)
    return {"bytes": size, "seconds": round(finished - started, 3), "publish_seconds": round(published - started, 3)}


def _bytes(update: WeightUpdate) -> int:
    """Return the bytes that one engine reads, or receives from the trainer."""
    if isinstance(update, FolderUpdate):
        return sum(file.stat().st_size for file in update.folder.glob("*.safetensors"))
    if isinstance(update, DeltaUpdate):
        return version_store.read_manifest(update.chain[-1]).bytes
    assert isinstance(update, CollectiveUpdate)
    return update.manifest.bytes


async def _probe_difference(group: TrainerGroup, pool: EnginePool, urls: list[str]) -> float:
    """Return the largest mean difference of an engine's log-probabilities to the trainer's, in nats."""
    probe = await complete(await ProbeWriter().probe(group))
    assert probe.expected is not None
    scores = [await engine_client(pool, url).score(probe.rows) for url in urls]
    return round(max(mean_difference(row, probe.expected) for row in scores), 5)


async def _expected(group: TrainerGroup, export: Path) -> dict[str, str]:
    """Return the hashes that every engine must have after the step."""
    await asyncio.to_thread(group.export, export, for_engines=True)
    return await asyncio.to_thread(folder_hashes, export)


async def _is_equal(expected: dict[str, str], pool: EnginePool, urls: list[str]) -> bool:
    """Return whether every parameter of every engine has the hash of the trainer's export."""
    for url in urls:
        (hashes,) = await engine_client(pool, url)._call_workers("rstar2_hashes", seconds=120)
        if any(hashes.get(name) != value for name, value in expected.items()):
            return False
    return True


def start_engine(stack: ExitStack, model: Path, folder: Path, token: str, job: AgenticRLJob = ENGINE_JOB) -> str:
    """Start an engine of a job on a free port; return its address."""
    (port,) = free_ports(1)
    file = folder / "job.json"
    file.write_text(job.model_dump_json(), encoding="utf-8")
    log = stack.enter_context((folder / f"engine-{port}.log").open("wb"))
    argv = [sys.executable, "-m", "rstar2_train.inference.server", "--job", str(file), "--model", str(model)]
    process = subprocess.Popen(
        [*argv, "--port", str(port)],
        stdout=log,
        stderr=log,
        env=os.environ | {"RSTAR2_ENGINE_TOKEN": token, ENABLED: "1"},
        start_new_session=True,
    )
    stack.callback(os.killpg, process.pid, signal.SIGKILL)
    return f"http://127.0.0.1:{port}"


def wait_for(url: str) -> None:
    """Wait until an engine answers. Raises RuntimeError after BOOT_SECONDS."""
    deadline = time.monotonic() + BOOT_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"{url} did not start within {BOOT_SECONDS} s")
