"""TrainerGroup with real Ray ranks: two ranks equal one; checkpoints; exports; a full disk."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from models import CONFIG, OPTIMIZER, conversations, rank_here, rollout_groups, save, write_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.stages import GRPOSettings, ImportanceCorrection
from rstar2_train.trainer import checkpoint, ray_runtime
from rstar2_train.trainer.batching import distribute_rows, grpo_updates, sft_rows
from rstar2_train.trainer.checkpoint import CheckpointInvalid
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.utils.ray_environment import store_bytes
from rstar2_train.weights import version_store
from rstar2_train.weights.experimental.tensor_group import TensorGroup, client_store
from rstar2_train.weights.host_copy import HostCopy

LR = 3e-3
SETTINGS = GRPOSettings(updates_per_step=2, importance_correction=ImportanceCorrection(enabled=True))


@pytest.fixture(scope="module")
def group() -> Iterator[TrainerGroup]:
    """Two ranks; each test loads its own model."""
    with TrainerGroup(ranks=2, config=CONFIG) as group:
        yield group


def exported(group: TrainerGroup, folder: Path) -> dict[str, torch.Tensor]:
    group.export(folder, for_engines=True)
    return load_file(folder / "model.safetensors")


def steps(group: TrainerGroup, numbers: range) -> list[float]:
    """Run a few SFT and GRPO updates; return their losses."""
    losses = []
    for number in numbers:
        losses.append(group.sft_step(conversations(7, seed=number), lr=LR)["loss"])
        rollouts = rollout_groups(3, 4, seed=number)
        losses.append(group.grpo_step(rollouts, lr=LR, settings=SETTINGS, seed=number)["loss"])
    return losses


def test_trainer_group_ray_store_holds_a_step(group: TrainerGroup) -> None:
    """The private Ray has the object store of a cluster's: with a small one it writes the sequences to the disk."""
    import ray

    (node,) = ray.nodes()
    assert node["Resources"]["object_store_memory"] == store_bytes()


def test_trainer_group_load_logs_layout_and_attention(
    group: TrainerGroup, model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of the orchestrator has the facts that a rank, whose log no user sees, decides on."""
    with caplog.at_level(logging.INFO, logger="rstar2_train"):
        group.load(model_dir, optimizer=OPTIMIZER)
    assert "layout of the training step: Layout(ranks=2" in caplog.text
    assert "attention: padded rows; layers: not compiled" in caplog.text
    assert "log-probabilities differ from transformers by" in caplog.text


def test_ranks_without_amdsmi_have_devices_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray without the package amdsmi narrows only the variable of NVIDIA; torch for ROCm reads the other one first."""
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0,1")
    # A private Ray of its own: the ranks' variables are those at its start.
    code = (
        "import os\n"
        "from rstar2_train.trainer import ray_runtime\n"
        "from rstar2_train.trainer.actors import VISIBLE, RankProcess\n"
        "from rstar2_train.trainer.types import TrainConfig\n"
        "runtime = ray_runtime.start_or_join(None, cpus=2, gpus=2)\n"
        "remote = runtime.ray.remote(num_cpus=1, num_gpus=1)(RankProcess)\n"
        "ranks = [remote.remote(rank=rank, ranks=2, config=TrainConfig()) for rank in range(2)]\n"
        "seen = [each.__ray_call__.remote(lambda _: [os.environ[name] for name in VISIBLE]) for each in ranks]\n"
        "print(sorted(runtime.ray.get(seen)))\n"
        "runtime.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[['0', '0'], ['1', '1']]"


def test_trainer_group_environment_is_restored(group: TrainerGroup) -> None:
    """Programs that the process starts later do not read the settings of its private Ray, such as `ray start`."""
    assert group.pids and not ray_runtime.PRIVATE.keys() & os.environ.keys()


def test_trainer_group_two_ranks_equal_one(group: TrainerGroup, model_dir: Path, tmp_path: Path) -> None:
    """Two ranks have the metrics and the weights of a single rank."""
    group.load(model_dir, optimizer=OPTIMIZER)
    held_out = group.sft_loss(conversations(7))
    supervised = group.sft_step(conversations(7), lr=LR)
    reinforced = group.grpo_step(rollout_groups(3, 4), lr=LR, settings=SETTINGS, seed=5)
    lone = group.sft_step(conversations(1), lr=LR)  # fewer sequences than ranks
    after_two = exported(group, tmp_path / "two")

    def share(rows: list) -> list:  # type: ignore[type-arg]
        return distribute_rows(rows, ranks=1, tokens_per_micro_batch=CONFIG.tokens_per_micro_batch)[0]

    with rank_here(model_dir) as rank:
        first = rank.sft(share(sft_rows(conversations(7))), LR)
        updates = grpo_updates(rollout_groups(3, 4), updates=2, seed=5)
        second = rank.grpo([share([row for g in update for row in g]) for update in updates], LR, SETTINGS)
        third = rank.sft(share(sft_rows(conversations(1))), LR)
        (tmp_path / "one").mkdir()
        rank.export(model_dir, tmp_path / "one")
    after_one = load_file(tmp_path / "one" / "model.safetensors")

    assert held_out == pytest.approx(first.sums["loss"], rel=1e-5)
    assert supervised["loss"] == pytest.approx(first.sums["loss"], rel=1e-5)
    assert supervised["grad_norm"] == pytest.approx(first.maxima["grad_norm"], rel=1e-4)
    assert supervised["tokens"] == first.sums["tokens"]
    assert reinforced["loss"] == pytest.approx(second.sums["loss"] / 2, rel=1e-4, abs=1e-6)
    assert reinforced["ratio_mean"] == pytest.approx(second.sums["ratio"] / second.sums["tokens"], rel=1e-5)
    assert reinforced["mismatch_max"] == pytest.approx(second.maxima["mismatch_max"], rel=1e-5)
    assert reinforced["correction_mean"] == pytest.approx(second.sums["correction"] / second.sums["tokens"], rel=1e-4)
    assert reinforced["entropy"] == pytest.approx(second.sums["entropy"] / second.sums["tokens"], rel=1e-5)
    assert (reinforced["updates"], reinforced["groups"], reinforced["sequences"]) == (2, 3, 12)
    assert lone["loss"] == pytest.approx(third.sums["loss"], rel=1e-4)
    assert after_two.keys() == after_one.keys()
    for name, tensor in after_two.items():
        torch.testing.assert_close(tensor, after_one[name], rtol=1e-3, atol=2e-4)


def test_trainer_group_restore_continues_exactly(group: TrainerGroup, model_dir: Path, tmp_path: Path) -> None:
    """After a restore, losses and weights are bit-identical to an uninterrupted run."""
    group.load(model_dir, optimizer=OPTIMIZER)
    steps(group, range(2))
    folder = checkpoint.checkpoint_path(tmp_path, 2)
    save(group, folder, step=2, extra={"cursor": {"epoch": 1, "order": [3, 1]}})
    expected = steps(group, range(2, 4))
    straight = exported(group, tmp_path / "straight")

    group.load(model_dir, optimizer=OPTIMIZER)
    state = group.restore(folder)
    assert (state.step, state.extra) == (2, {"cursor": {"epoch": 1, "order": [3, 1]}})
    assert steps(group, range(2, 4)) == expected
    resumed = exported(group, tmp_path / "resumed")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)

    # In float32 a stage that starts from the checkpoint's weights equals one that starts from the model folder.
    group.load(model_dir, optimizer=OPTIMIZER)
    group.restore(folder, reset_optimizer=True)
    exported(group, tmp_path / "final-model")
    from_checkpoint = steps(group, range(2, 4))
    group.load(tmp_path / "final-model", optimizer=OPTIMIZER)
    assert steps(group, range(2, 4)) == from_checkpoint

    # Without its moments the optimiser makes other steps from the same weights.
    group.restore(folder, reset_optimizer=True)
    fresh = steps(group, range(2, 4))
    assert fresh[0] == expected[0]
    assert fresh[1:] != expected[1:]


def test_trainer_group_checkpoint_loads_with_one_rank(group: TrainerGroup, model_dir: Path, tmp_path: Path) -> None:
    """One rank restores a checkpoint of two ranks and continues from it."""
    group.load(model_dir, optimizer=OPTIMIZER)
    steps(group, range(1))
    save(group, checkpoint.checkpoint_path(tmp_path, 1), step=1)
    two = exported(group, tmp_path / "two")
    loss = group.sft_step(conversations(7), lr=LR)["loss"]
    following = group.sft_step(conversations(7), lr=LR)["loss"]
    with rank_here(model_dir) as rank:
        rank.restore(checkpoint.checkpoint_path(tmp_path, 1), False)
        (tmp_path / "one").mkdir()
        rank.export(model_dir, tmp_path / "one")
        batches = distribute_rows(sft_rows(conversations(7)), ranks=1, tokens_per_micro_batch=4096)[0]
        assert rank.sft(batches, LR).sums["loss"] == pytest.approx(loss, rel=1e-5)
        assert rank.sft(batches, LR).sums["loss"] == pytest.approx(following, rel=1e-5)
    weights = load_file(tmp_path / "one" / "model.safetensors")
    assert all(torch.equal(two[name], weights[name]) for name in two)


def test_trainer_group_damaged_checkpoint_is_rejected(group: TrainerGroup, model_dir: Path, tmp_path: Path) -> None:
    """A damaged checkpoint is rejected with the file's name; the group stays usable."""
    group.load(model_dir, optimizer=OPTIMIZER)
    folder = checkpoint.checkpoint_path(tmp_path, 1)
    save(group, folder, step=1)
    shard = folder / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointInvalid, match=r"SHA-256 of .*__1_0\.distcp"):
        group.restore(folder)
    shard.unlink()
    with pytest.raises(CheckpointInvalid, match=r"__1_0\.distcp is missing"):
        group.restore(folder)
    assert group.sft_step(conversations(3), lr=LR)["loss"] > 0


def test_trainer_group_export_replaces_the_folder(group: TrainerGroup, model_dir: Path, tmp_path: Path) -> None:
    """A second export replaces the first one and leaves no temporary folder."""
    group.load(model_dir, optimizer=OPTIMIZER)
    before = exported(group, tmp_path / "weights")
    steps(group, range(1))
    after = exported(group, tmp_path / "weights")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_trainer_group_published_versions_equal_the_export(group: TrainerGroup, tmp_path: Path, dtype: str) -> None:
    """A snapshot and two deltas of two ranks give the exported weights bit by bit; the small rate changes few bits."""
    group.load(write_model(tmp_path / "model", dtype=dtype), optimizer=OPTIMIZER)
    group.start_versions()
    copy, chain, sizes = HostCopy(), [], []
    base = None
    _, fingerprint = group.score([[1, 2, 3]])
    for number, lr in enumerate([1e-6, 1e-6, 0.0]):
        group.sft_step(conversations(7, seed=number), lr=lr)
        version_id = version_store.new_id()
        folder = version_store.version_folder(tmp_path / "versions", number, version_id)
        manifest = group.publish(folder, version=f"v{number}", version_id=version_id, base=base)
        base, before = version_id, fingerprint
        _, fingerprint = group.score([[1, 2, 3]])
        assert (fingerprint == before) == (lr == 0.0)
        chain.append(folder)
        sizes.append(manifest.bytes)
        copy.update(chain)
        expected = exported(group, tmp_path / "export")
        assert copy.arrays.keys() == expected.keys()
        for name, tensor in expected.items():
            bits = tensor.flatten().view(torch.int16 if dtype == "bfloat16" else torch.int32).numpy()
            assert (copy.arrays[name].view(bits.dtype) == bits).all(), name
    assert sizes[2] < sizes[0] / 10
    if dtype == "bfloat16":
        assert sizes[1] < sizes[0] / 4  # small tensors, whose index is as large as their changes


def test_trainer_group_logs_library_of_transfers(
    group: TrainerGroup, model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After two transfers the log has their library and the reason, once."""
    caplog.set_level(logging.INFO)
    group.load(model_dir, optimizer=OPTIMIZER)
    group.start_versions()
    folder = version_store.version_folder(tmp_path, 0, "id")
    manifest = group.publish(folder, version="v0", version_id="id", base=None)
    group.serve_transfers()
    for _ in range(2):
        offer = group.start_transfer(folder, workers=1, seconds=60)
        store = client_store(offer.host, offer.port, members=2, seconds=60)
        with TensorGroup(store, rank=1, members=2, address=offer.host, seconds=60, device=None) as transfer:
            for file in manifest.files:
                content = torch.empty(file.bytes, dtype=torch.uint8)
                transfer.broadcast(content)
                assert content.numpy().tobytes() == (folder / file.name).read_bytes()
        group.release_weights(folder)
    line = "weights travel over gloo: the trainer cannot use NCCL or RCCL: it has no GPU"
    assert [record.getMessage() for record in caplog.records].count(line) == 1


def test_trainer_group_score_equals_transformers(group: TrainerGroup, tmp_path: Path) -> None:
    """The reference of the probe is the model's own log-probability of each token after the first."""
    model = write_model(tmp_path / "model")
    group.load(model, optimizer=OPTIMIZER)
    rows = [[1, 2, 3, 4], [9, 8, 7, 6]]
    scores, _ = group.score(rows)
    with torch.no_grad():
        table = AutoModelForCausalLM.from_pretrained(model)(torch.tensor(rows)).logits[:, :-1].log_softmax(-1)
    expected = table.gather(2, torch.tensor(rows)[:, 1:, None]).squeeze(2)
    assert torch.allclose(torch.tensor(scores), expected, atol=1e-5)


def test_trainer_group_trains_while_a_checkpoint_is_written(
    group: TrainerGroup, model_dir: Path, tmp_path: Path
) -> None:
    """Updates between the copy and the end of the write do not change the checkpoint, nor the write the updates."""
    group.load(model_dir, optimizer=OPTIMIZER)
    steps(group, range(1))
    before = exported(group, tmp_path / "before")
    group.snapshot_state()
    folder = checkpoint.checkpoint_path(tmp_path, 1)
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(group.write_checkpoint, folder, step=1, extra={})
        expected = steps(group, range(1, 3))
        writing.result()
    group.load(model_dir, optimizer=OPTIMIZER)
    group.restore(folder)
    restored = exported(group, tmp_path / "restored")
    assert all(torch.equal(before[name], restored[name]) for name in before)
    assert steps(group, range(1, 3)) == expected


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with space for one checkpoint of the toy, but not for two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small tmpfs needs root: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_trainer_group_full_disk_is_storage_full(group: TrainerGroup, model_dir: Path, small_disk: Path) -> None:
    """This test is the last one of the module's group: after an error of its ranks it is unusable."""
    group.load(model_dir, optimizer=OPTIMIZER)
    save(group, small_disk / "step-000001", step=1)
    with pytest.raises(StageFailed, match="no space left") as caught:
        save(group, small_disk / "step-000002", step=2)
    assert caught.value.reason == "StorageFull"
    assert not caught.value.retryable
    assert [path.name for path in small_disk.iterdir()] == ["step-000001"]
    assert checkpoint.verify(small_disk / "step-000001").step == 1
