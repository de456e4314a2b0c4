"""Adapters in a real engine: equal to the merged weights, and each known fault refused before it samples a token."""

from __future__ import annotations

import asyncio
import copy
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.cli.main import main
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.engine_protocols import PooledClient, weight_receiver
from rstar2_train.inference.pool import EnginePool, PoolTimes
from rstar2_train.inference.server import SERVED_NAME
from rstar2_train.inference.turn_wire import ADAPTER, SCORE
from rstar2_train.inference.weight_update import AdapterUpdate, FolderUpdate
from rstar2_train.weights.adapter_folder import tensor_name
from rstar2_train.weights.probe import TOLERANCE, Probe, mean_difference, probe_rows
from tests.support.adapters import Tensors, merged_scores, publish, random_tensors
from tests.support.engine import JOB, Engine
from tests.support.engine_fixtures import Models
from tests.support.steady_requests import spanning, steady_requests

RANK, ALPHA = 8, 16
ROWS = probe_rows(300)
PROMPT = [5, 77, 130, 9] * 10
TIMES = PoolTimes(patience=2, load=120, straggler=2, check_interval=0.5, retry_interval=0.2)
EXACT = 2e-5
"""Largest mean difference to transformers, in nats."""


@pytest.fixture(scope="module")
def engine(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that loads adapters; its boot model is not their base."""
    job: dict[str, Any] = copy.deepcopy(JOB)
    job["spec"]["rollout"]["weightTransport"] = "Folder"
    job["spec"]["trainer"] = {"lora": {"rank": RANK, "alpha": ALPHA}}
    engine = Engine(models.other, folder=tmp_path_factory.mktemp("engine"), job=AgenticRLJob.model_validate(job))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")  # vLLM's own route, as `--lora-modules` loads
            engine.start()
        yield engine
    finally:
        engine.kill()


@pytest.fixture
async def pool(engine: Engine) -> AsyncIterator[EnginePool]:
    """A pool that gives up soon."""
    connect = partial(EngineClient, has_adapters=True)
    async with EnginePool([engine.url], token=engine.token, times=TIMES, connect=connect) as pool:
        yield pool


class Trainer:
    """Publishes random adapters on one base, with the probe that a right trainer would send."""

    def __init__(self, base: Path, folder: Path) -> None:
        self.base = FolderUpdate.make(base, "rl-step-000000", base_name=folder.name)
        self.folder = folder
        self.number = 0
        self.tensors: Tensors = {}
        self.scores: list[list[float]] = []

    def publish(self, *, size: float = 0.3) -> AdapterUpdate:
        """Write another adapter."""
        self.number += 1
        self.tensors = random_tensors(self.base.folder, rank=RANK, seed=self.number, size=size)
        version = f"rl-step-{self.number:06d}"
        order = publish(
            self.folder / "versions",
            self.tensors,
            base=self.base.folder,
            version=version,
            rank=RANK,
            alpha=ALPHA,
            number=self.number,
        )
        self.scores = merged_scores(self.base.folder, self.tensors, ROWS, scale=ALPHA / RANK)
        probe = Probe(ROWS, self.scores, TOLERANCE["float32"], expects_change=True, has_adapter=True)
        return AdapterUpdate(self.base, order, probe)


@pytest.fixture
def trainer(models: Models, tmp_path: Path) -> Trainer:
    """A trainer whose base the engine does not have yet."""
    return Trainer(models.boot, tmp_path)


async def test_adapters_equal_the_merged_weights(pool: EnginePool, engine: Engine, trainer: Trainer) -> None:
    """Two adapters in turn, with the base before and after: all as transformers computes them."""
    client = pool.client(engine.url)
    assert isinstance(client, EngineClient)
    base = merged_scores(trainer.base.folder, {}, ROWS, scale=1)
    for _ in range(2):
        update = trainer.publish()
        assert await pool.push(update) == [engine.url]
        assert await client.weight_version() == update.version
        assert mean_difference(await client.score(ROWS), trainer.scores) < EXACT
        reply = await client.post(SCORE, {"rows": ROWS, "base": True}, seconds=60)  # the client keeps the first one
        assert mean_difference(reply["logprobs"], base) < EXACT
        turn = await client.generate(PROMPT, max_tokens=8, temperature=1.0, seed=1)
        assert [version for version, _ in turn.versions] == [update.version]
        [sampled] = merged_scores(
            trainer.base.folder, trainer.tensors, [[*PROMPT, *turn.token_ids]], scale=ALPHA / RANK
        )
        assert mean_difference([sampled[len(PROMPT) - 1 :]], [list(turn.logprobs)]) < EXACT
    await pool.push(FolderUpdate.make(trainer.base.folder, "base"))
    assert mean_difference(await client.score(ROWS), base) < EXACT
    assert await client.base_name() is None


async def refuse(pool: EnginePool, trainer: Trainer, update: AdapterUpdate, reason: str) -> None:
    """Check that no engine serves a faulty version, and that a right one heals it."""
    with pytest.raises((EngineRejected, EngineUnavailable), match=reason):
        await pool.push(update)
    assert pool.serving == []
    assert await pool.push(trainer.publish()) != []


class NotSent(AdapterUpdate):
    """The engine reports the version, but got no adapter."""

    async def load(self, client: PooledClient, **_: Any) -> None:
        assert isinstance(client, EngineClient)
        await weight_receiver(client).mark_loading()
        await client._serve(None)
        await client.post("/update_weight_version", {"new_version": self.version}, seconds=30)


async def test_adapter_that_was_not_sent_is_refused(pool: EnginePool, trainer: Trainer) -> None:
    """An engine that samples the base under the adapter's version does not pass the probe."""
    await pool.push(trainer.publish())
    update = trainer.publish()
    await refuse(pool, trainer, NotSent(update.base, update.order, update.probe), "equal those of the base")


def unbind(tensors: Tensors) -> Tensors:
    """Return an adapter of layers that the model does not have."""
    return {name.replace("model.layers.", "model.blocks."): tensor for name, tensor in tensors.items()}


def write_again(update: AdapterUpdate, tensors: Tensors, *, alpha: int = ALPHA) -> AdapterUpdate:
    """Publish other tensors under the version of an update, with a right manifest."""
    root = Path(update.order.folder).parent
    order = publish(root, tensors, base=update.base.folder, version=update.version, rank=RANK, alpha=alpha, number=900)
    return replace(update, order=replace(order, adapter=update.order.adapter))


async def test_faulty_adapters_are_refused(pool: EnginePool, trainer: Trainer) -> None:
    """Each known fault is found before a token is sampled, and the reason is the fault."""
    before = trainer.publish()
    previous = dict(trainer.tensors)
    await pool.push(before)

    update = trainer.publish()
    await refuse(pool, trainer, write_again(update, unbind(trainer.tensors)), "'model.blocks.*does not have")

    update = trainer.publish()
    await refuse(
        pool, trainer, write_again(update, trainer.tensors, alpha=2 * ALPHA), "has lora_alpha 32, the job has 16"
    )

    update = trainer.publish()
    zero = {name: tensor * ("lora_A" in name) for name, tensor in trainer.tensors.items()}
    await refuse(pool, trainer, write_again(update, zero), "equal those of the base")

    update = trainer.publish()
    await refuse(pool, trainer, write_again(update, previous), "other weights than the trainer")

    update = trainer.publish()
    old = replace(update, order=replace(update.order, folder=before.order.folder))
    await refuse(pool, trainer, old, "has version rl-step-000001")

    update = trainer.publish()
    file = Path(update.order.folder) / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    await refuse(pool, trainer, update, "damaged: its SHA-256")

    update = trainer.publish()
    shutil.rmtree(update.order.folder)
    await refuse(pool, trainer, update, r"manifest\.json is missing")


async def test_version_before_under_a_new_name_is_refused(pool: EnginePool, trainer: Trainer) -> None:
    """A change below the tolerance of the probe is found too: the engine's values equal those of the version before."""
    await pool.push(trainer.publish(size=1e-4))
    previous = dict(trainer.tensors)
    update = write_again(trainer.publish(size=1e-4), previous)
    await refuse(pool, trainer, update, "equal those of the version before: the update was not applied")


async def test_path_of_the_version_before_is_refused(pool: EnginePool, engine: Engine, trainer: Trainer) -> None:
    """vLLM reads the path again for an adapter that it lost, and its prefix cache would have the old tokens' values."""
    update = trainer.publish()
    await pool.push(update)
    client = pool.client(engine.url)
    await client.generate(PROMPT, max_tokens=4, temperature=0.0)
    following = trainer.publish()
    folder = Path(update.order.folder)
    shutil.rmtree(folder)
    shutil.copytree(following.order.folder, folder)
    reused = replace(following, order=replace(following.order, folder=str(folder)))
    await refuse(pool, trainer, reused, "had other files as version rl-step-000001: a version needs a path")


class MergedInHalf(AdapterUpdate):
    """The engine got the base with the adapter merged in bfloat16: a small change is lost."""

    async def load(self, client: PooledClient, **_: Any) -> None:
        assert isinstance(client, EngineClient)
        await client.load_weights(Path(self.order.folder), self.version, seconds=60)


async def test_adapter_merged_in_half_precision_is_refused(
    pool: EnginePool, trainer: Trainer, models: Models, tmp_path: Path
) -> None:
    """Whole weights under the adapter's version do not pass the probe, which has the adapter switched on and off."""
    await pool.push(trainer.publish())
    update, merged = trainer.publish(size=1e-3), tmp_path / "merged"
    shutil.copytree(models.boot, merged)
    weights = load_file(merged / "model.safetensors")
    for name in [each.removesuffix(".weight") for each in weights]:
        if (a := trainer.tensors.get(tensor_name(name, "lora_A"))) is not None:
            change = torch.from_numpy(trainer.tensors[tensor_name(name, "lora_B")] @ a) * (ALPHA / RANK)
            weights[f"{name}.weight"] = (weights[f"{name}.weight"].bfloat16() + change.bfloat16()).float()
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    order = replace(update.order, folder=str(merged))
    await refuse(pool, trainer, MergedInHalf(update.base, order, update.probe), "equal those of the base")


async def test_evicted_adapter_is_loaded_again_or_fails(pool: EnginePool, engine: Engine, trainer: Trainer) -> None:
    """An adapter that vLLM lost is read from its files again; the engine never samples the base in its place."""
    client = pool.client(engine.url)
    await pool.push(trainer.publish())
    await remove_adapters(client)
    assert mean_difference(await client.score(ROWS), trainer.scores) < EXACT


async def remove_adapters(client: PooledClient) -> None:
    """Let vLLM lose all adapters."""
    for number in range(1, 60):  # all ids that it can have
        await client._call_workers("remove_lora", number, seconds=30)


async def test_engine_without_its_base_gets_base_and_adapter(
    pool: EnginePool, engine: Engine, models: Models, trainer: Trainer
) -> None:
    """An engine with other weights, such as one that has restarted, serves again with both."""
    client = pool.client(engine.url)
    update = trainer.publish()
    await pool.push(update)
    assert isinstance(client, EngineClient)
    await client.load_weights(models.other, "default", seconds=60)
    async with asyncio.timeout(60):
        while await client.weight_version() != update.version or not pool.serving:
            await asyncio.sleep(0.1)
    assert await client.base_name() == trainer.base.base_name
    assert mean_difference(await client.score(ROWS), trainer.scores) < EXACT


async def test_request_of_another_version_than_its_adapter_fails(
    pool: EnginePool, engine: Engine, trainer: Trainer
) -> None:
    """A request that escapes the stop of an update keeps its adapter; its tokens never pass for the new version."""
    client = pool.client(engine.url)
    await pool.push(trainer.publish())
    failures: list[BaseException] = []
    async with asyncio.timeout(300):
        while not failures:  # else no request was in flight during the update
            update = trainer.publish()
            assert (await client.post(ADAPTER, update.order.to_json(), seconds=60))["ok"]
            requests = [client.generate(PROMPT, max_tokens=200, seed=seed, stop_ids=[]) for seed in range(6)]
            turns = asyncio.gather(*requests, return_exceptions=True)
            await asyncio.sleep(0.1)
            assert (await client._serve(update.version))[0]["ok"]
            await client.post("/update_weight_version", {"new_version": update.version}, seconds=30)
            failures += [turn for turn in await turns if isinstance(turn, BaseException)]
    for failure in failures:
        assert isinstance(failure, EngineUnavailable) and "got tokens of version" in str(failure)


async def test_requests_continue_with_the_new_adapter(pool: EnginePool, engine: Engine, trainer: Trainer) -> None:
    """A request in flight spans an update: its first tokens come from the old adapter, the others from the new one."""
    client = pool.client(engine.url)
    await pool.push(trainer.publish())
    adapters = {f"rl-step-{trainer.number:06d}": dict(trainer.tensors)}

    async def update() -> None:
        await pool.push(trainer.publish(), keep_requests=True)
        adapters[f"rl-step-{trainer.number:06d}"] = dict(trainer.tensors)

    async with steady_requests(client, PROMPT) as finished:
        generations = await spanning(finished, update)
    generation = generations[0]
    (first, _), (second, start) = generation.versions
    for version, part in ((first, slice(0, start)), (second, slice(start, None))):
        row = [*PROMPT, *generation.token_ids]
        [scores] = merged_scores(trainer.base.folder, adapters[version], [row], scale=ALPHA / RANK)
        expected = scores[len(PROMPT) - 1 :][part]
        assert mean_difference([expected], [list(generation.logprobs[part])]) < EXACT


async def test_orders_of_another_rank_are_refused(pool: EnginePool, trainer: Trainer) -> None:
    """The job's rank and alpha decide, not those of the file."""
    update = trainer.publish()
    order = replace(update.order, adapter=replace(update.order.adapter, rank=16))
    await refuse(pool, trainer, replace(update, order=order), "has r 8, the job has 16")


async def test_exported_adapter_has_the_same_greedy_tokens(
    pool: EnginePool, engine: Engine, trainer: Trainer, models: Models, tmp_path: Path
) -> None:
    """The engine, peft, the merged model, and vLLM's own adapters: the same tokens from one exported adapter."""
    update = trainer.publish(size=1.0)
    exported, merged = tmp_path / "adapter", tmp_path / "merged"
    assert main(["export", update.order.folder, str(exported)]) == 0
    assert main(["export", str(exported), str(merged), "--merge"]) == 0
    await pool.push(update)
    client = pool.client(engine.url)
    ours = [list((await client.generate(row, max_tokens=24, temperature=0.0)).token_ids) for row in ROWS[:3]]
    without = greedy_tokens(AutoModelForCausalLM.from_pretrained(models.boot, dtype=torch.float32))
    assert ours != without
    assert ours == greedy_tokens(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32))
    base = AutoModelForCausalLM.from_pretrained(models.boot, dtype=torch.float32)
    assert ours == greedy_tokens(PeftModel.from_pretrained(base, exported))
    assert isinstance(client, EngineClient)
    await remove_adapters(client)  # vLLM counts its ids from 1 too, and keeps an adapter that has the id
    body = {"lora_name": "mine", "lora_path": str(exported)}
    async with client.request("POST", "/v1/load_lora_adapter", json=body, seconds=60) as response:
        assert response.status == 200
    assert await completions(client, "mine") == ours
    assert await completions(client, SERVED_NAME) == without


async def completions(client: EngineClient, model: str) -> list[list[int]]:
    """Return the tokens of vLLM's OpenAI endpoint, at most 24 for each prompt."""
    fields = {"max_tokens": 24, "temperature": 0, "return_token_ids": True}
    replies = [
        await client.post("/v1/completions", {"model": model, "prompt": row, **fields}, seconds=60) for row in ROWS[:3]
    ]
    return [reply["choices"][0]["token_ids"] for reply in replies]


@torch.no_grad()
def greedy_tokens(model: Any) -> list[list[int]]:
    """Return the tokens that follow each prompt, at most 24, up to the end of a turn; without a cache."""
    rows = []
    for prompt in ROWS[:3]:
        row = list(prompt)
        for _ in range(24):
            row.append(int(model(torch.tensor([row])).logits[0, -1].argmax()))
            if row[-1] == model.config.eos_token_id:
                break
        rows.append(row[len(prompt) :])
    return rows
