"""A trainer of one rank in the test's process, which publishes weight versions to a real engine.

A test module imports the fixtures `rank` and `trainer` by name; the engine is that of `engine_fixtures`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.weight_update import CollectiveUpdate, DeltaUpdate
from rstar2_train.trainer import export
from rstar2_train.trainer.batching import distribute_rows, sft_rows
from rstar2_train.trainer.collective_sender import CollectiveSender
from rstar2_train.trainer.model_files import copy_companions
from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.ray_runtime import LOOPBACK
from rstar2_train.trainer.types import OptimizerConfig, TrainConfig
from rstar2_train.weights import version_store
from rstar2_train.weights.experimental.transfer import Offer
from rstar2_train.weights.probe import TOLERANCE, Probe, probe_rows
from rstar2_train.weights.version_store import VersionManifest
from tests.support.engine_fixtures import Models
from tests.support.token_arrays import token_sequence

ROWS = probe_rows(300)


class VersionTrainer:
    """One rank in this process, and the chain of its versions."""

    def __init__(self, rank: TrainerRank, model: Path, folder: Path) -> None:
        self.rank, self.model, self.folder = rank, model, folder
        self.chain: list[Path] = []
        self.manifest: VersionManifest | None = None
        self.number = 0
        self.sums: list[int] = []
        rank.load(model, OptimizerConfig())
        rank.start_versions(model)

    def update(self, lr: float) -> None:
        """Run one update."""
        rows = sft_rows([token_sequence([5, 6, 7, 8, 9, self.number + 10], [1] * 6)])
        self.rank.sft(distribute_rows(rows, ranks=1, tokens_per_micro_batch=256)[0], lr)

    def publish(self, *, snapshot: bool = False) -> DeltaUpdate:
        """Write a version, with its probe."""
        version_id = version_store.new_id()
        target = version_store.version_folder(self.folder / "versions", self.number, version_id)
        target.mkdir(parents=True)
        full = snapshot or self.manifest is None
        base = None if full or self.manifest is None else self.manifest.id
        files = [self.rank.write_version(target, base)]
        self.manifest = VersionManifest(version_id, f"v{self.number}", base, files)
        version_store.write_manifest(target, self.manifest)
        self.rank.commit_version(version_id)
        self.chain = [target] if full else [*self.chain, target]
        self.number += 1
        return DeltaUpdate(list(self.chain), self.manifest.version, version_id, self.probe())

    def probe(self) -> Probe:
        """Return the probe of the current weights."""
        scores, sums = self.rank.score(self.model, ROWS)
        changed, self.sums = sums != self.sums, sums
        return Probe(ROWS, scores, TOLERANCE["float32"], expects_change=changed)

    def export(self, name: str) -> Path:
        """Write the whole model."""
        target = self.folder / name
        target.mkdir()
        copy_companions(self.model, target)
        assert self.rank.policy is not None
        export.write_weights(self.rank.policy, self.model, target)
        return target


@pytest.fixture(scope="module")
def rank() -> Iterator[TrainerRank]:
    """A group of one rank."""
    rank = TrainerRank(rank=0, ranks=1, config=TrainConfig(threads=1, activation_checkpointing=False))
    rank.connect(LOOPBACK, rank.listen(LOOPBACK), 1)
    yield rank
    rank.close()


@pytest.fixture
def trainer(rank: TrainerRank, models: Models, tmp_path: Path) -> VersionTrainer:
    """The trainer with the engine's model."""
    return VersionTrainer(rank, models.boot, tmp_path)


class StagedSender:
    """The trainer's end of collective transfers, in this process."""

    def __init__(
        self, trainer: VersionTrainer, *, on_offer: Callable[[], None] = lambda: None, seconds: float = 30
    ) -> None:
        self.sender = CollectiveSender("127.0.0.1")
        update = trainer.publish()
        assert trainer.manifest is not None
        self.update = CollectiveUpdate(update, self, trainer.manifest, seconds)
        self.ports: list[int] = []
        self._on_offer = on_offer

    def start_transfer(self, folder: Path, *, workers: int, seconds: float) -> Offer:
        self.ports.append(self.sender.offer(folder, workers, seconds))
        self._on_offer()
        return Offer("127.0.0.1", self.ports[-1], workers, seconds)


async def engine_hashes(client: EngineClient) -> dict[str, str]:
    """Return the hashes of all parameters of the engine."""
    (result,) = await client._call_workers("rstar2_hashes", seconds=60)
    return result
