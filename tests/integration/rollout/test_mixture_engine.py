"""A mixture of experts in a real engine: its weights, the experts that it reports, and their replay in the trainer."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineUnavailable
from rstar2_train.inference.engine_session import EngineSession
from rstar2_train.inference.sampled_turn import SampledTurn
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.routing import Routing, routing_of
from rstar2_train.weights.probe import mean_difference
from rstar2_train.weights.route_format import RouteFormat
from tests.support.engine import Engine, missing_packages, mixture_model
from tests.support.folder_hashes import folder_hashes
from tests.support.steady_requests import spanning, steady_requests
from tests.support.version_trainer import ROWS, VersionTrainer, engine_hashes, rank

__all__ = ["rank"]

FORM = RouteFormat(layers=3, experts=2, number_bytes=1)
PROMPT = [5, 77, 130, 9, 41] * 14


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing := missing_packages():
        pytest.skip(missing)
    return mixture_model(tmp_path_factory.mktemp("models") / "mixture")


@pytest.fixture(scope="module")
def mixture_engine(mixture: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(mixture, folder=tmp_path_factory.mktemp("engine"))
    try:
        engine.start()
        yield engine
    finally:
        engine.kill()


@pytest.fixture
def publisher(rank: TrainerRank, mixture: Path, tmp_path: Path) -> VersionTrainer:
    return VersionTrainer(rank, mixture, tmp_path)


def replay(rank: TrainerRank, ids: Sequence[int], routes: bytes) -> tuple[list[float], Routing]:
    """Return the trainer's log-probability of each token after the first with the given experts, and the replay."""
    tokens = torch.tensor([ids])
    routing = routing_of([routes], FORM, tokens, None)
    routing.used = {}
    assert rank.policy is not None
    with torch.no_grad():
        values, _ = rank.policy(
            ids=tokens, positions=torch.arange(len(ids) - 1), targets=tokens[0, 1:], routing=routing
        )
    rank.policy.reshard()  # type: ignore[operator]
    return values.tolist(), routing


def own_experts(rank: TrainerRank, ids: Sequence[int]) -> NDArray[np.uint8]:
    """Return the experts that the trainer chooses for all tokens but the last."""
    _, routing = replay(rank, ids, b"")
    assert routing.used is not None
    rows = np.zeros((len(ids), FORM.layers, FORM.experts), np.uint8)
    for layer, (experts,) in routing.used.items():
        rows[:, layer] = experts.numpy()
    return rows[:-1]


def same_choices(rows: NDArray[np.uint8], others: NDArray[np.uint8]) -> float:
    """Return the share of tokens and layers with the same experts."""
    assert rows.shape == others.shape
    return float((np.sort(rows, axis=2) == np.sort(others, axis=2)).all(axis=2).mean())


async def test_mixture_weights_and_experts_travel(mixture_engine: Engine, publisher: VersionTrainer) -> None:
    """Deltas and folders give the engine the trainer's weights, and it chooses and computes as the trainer does."""
    trainer, model = publisher.rank, publisher.model
    async with EngineSession() as session:
        client = EngineClient(mixture_engine.url, token=mixture_engine.token, session=session, part_tokens=7)
        for number, lr in enumerate((0.0, 1e-2, 1e-9)):
            publisher.update(lr)
            update = publisher.publish()
            await client.load_chain(update.chain, update.version, version_id=update.version_id, seconds=60)
            folder = publisher.export(f"export-{number}")
            expected = folder_hashes(folder)
            actual = await engine_hashes(client)
            assert {name: actual.get(name) for name in expected} == expected
            assert sum("w13_weight" in name for name in expected) == 2
            scores, _ = trainer.score(model, ROWS)
            assert mean_difference(await client.score(ROWS), scores) < 1e-5
        await FolderUpdate.make(folder, "folder").load(client, seconds=60, fresh=False, keep_requests=False)
        assert (await engine_hashes(client)).items() >= expected.items()

        async def sampled(prompt: Sequence[int], seed: int, known: int = 0) -> tuple[array[int], SampledTurn]:
            turn = SampledTurn(first_route=known)
            await client.generate(prompt, max_tokens=30 + seed, seed=seed, turn=turn)
            ids = array("i", prompt) + turn.token_ids
            rows = FORM.decode(bytes(turn.routes))
            assert same_choices(rows, own_experts(trainer, ids)[known:]) > 0.99
            values, routing = replay(trainer, ids, FORM.encode(own_experts(trainer, ids)[:known]) + bytes(turn.routes))
            assert np.allclose(values[len(prompt) - 1 :], turn.logprobs, atol=1e-4)
            assert routing.used is not None
            for layer in (0, 2):  # the experts of the engine, token by token
                used = routing.used[layer][0][known : len(ids) - 1]
                assert torch.equal(used, torch.from_numpy(rows[:, layer].astype(np.int64)))
            return ids, turn

        # The same prompt again, and several at a time: the cache has the prefix, and its experts.
        first, _ = await sampled(PROMPT, 0)
        await asyncio.gather(*(sampled(PROMPT, seed) for seed in range(1, 6)))
        await sampled([*first, 8, 9, 10], 6, known=len(first) - 1)  # a second turn reports only new tokens
        silent = await client.generate(PROMPT, max_tokens=4, seed=1)
        assert not silent.routes


async def test_experts_of_a_turn_survive_a_load_and_another_engine(
    mixture_engine: Engine, publisher: VersionTrainer
) -> None:
    """Requests that wait while weights load, and those that continue after a failure, report each token once."""
    async with EngineSession() as session:
        client = EngineClient(mixture_engine.url, token=mixture_engine.token, session=session, part_tokens=3)

        async def load() -> None:
            update = publisher.publish()
            await client.load_chain(
                update.chain, update.version, version_id=update.version_id, seconds=60, keep_requests=True
            )
            await client.release()

        async def update() -> None:
            publisher.update(1e-2)
            await load()

        await load()
        async with steady_requests(client, PROMPT, first_route=0) as finished:
            turns = await spanning(finished, update)
        for turn in turns:
            assert len(FORM.decode(bytes(turn.routes))) == len(PROMPT) + len(turn.token_ids) - 1
        # A client that lost its engine: the next request continues after the parts that arrived.
        lost = SampledTurn(first_route=0, accepts=lambda version: len(lost.token_ids) < 6)
        with pytest.raises(EngineUnavailable):
            await client.generate(PROMPT, max_tokens=60, seed=9, turn=lost)
        known = bytes(lost.routes)
        assert lost.finish_reason is None and 6 <= len(lost.token_ids) < 60
        lost.accepts = lambda version: True
        await client.generate(PROMPT, max_tokens=60, seed=10, turn=lost)
        rows = FORM.decode(bytes(lost.routes))
        assert bytes(lost.routes).startswith(known)
        assert same_choices(rows, own_experts(publisher.rank, array("i", PROMPT) + lost.token_ids)) > 0.99
