"""One rank in this process, with the real sharded model: log-probabilities, updates and exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import OPTIMIZER, VOCABULARY, conversations, rank_here, rollout_groups, write_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from rstar2_train.api.lora import LoRASpec
from rstar2_train.api.objectives import ReferenceKL
from rstar2_train.api.stages import GRPOSettings, ImportanceCorrection
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer import export
from rstar2_train.trainer.batching import MicroBatch, distribute_rows, grpo_updates, sft_rows
from rstar2_train.trainer.model import named_shards
from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.step import start_logprobs
from rstar2_train.trainer.types import MetricTally, TokenSequence

SETTINGS = GRPOSettings()


def sft_batches(sequences: list[TokenSequence], budget: int = 256) -> list[MicroBatch]:
    return distribute_rows(sft_rows(sequences), ranks=1, tokens_per_micro_batch=budget)[0]


def grpo_batches(groups: list[list[TokenSequence]], updates: int = 1, budget: int = 256) -> list[list[MicroBatch]]:
    return [
        distribute_rows([row for group in update for row in group], ranks=1, tokens_per_micro_batch=budget)[0]
        for update in grpo_updates(groups, updates=updates, seed=0)
    ]


def weights(rank: TrainerRank) -> dict[str, torch.Tensor]:
    assert rank.policy is not None
    return {name: shard.full_tensor().detach().clone() for name, shard in named_shards(rank.policy).items()}


def reference_logprobs(model: Path, sequences: list[TokenSequence]) -> list[torch.Tensor]:
    """Return the log-probabilities of the trained tokens, one sequence at a time, with transformers."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    logprobs = []
    for sequence in sequences:
        ids = torch.tensor([sequence.ids.tolist()])
        with torch.no_grad():
            table = torch.log_softmax(plain(ids).logits[0, :-1], dim=-1)
        logprobs.append(table.gather(1, ids[0, 1:, None]).squeeze(1)[torch.tensor(sequence.mask[1:], dtype=torch.bool)])
    return logprobs


@pytest.mark.parametrize("tied", [True, False])
def test_rank_logprobs_equal_transformers(tmp_path: Path, tied: bool) -> None:
    """The log-probabilities of packed micro-batches equal those of single sequences in transformers."""
    model = write_model(tmp_path / "m", tied=tied)
    sequences = conversations(9)
    expected = torch.cat(reference_logprobs(model, sorted(sequences, key=lambda s: len(s.ids), reverse=True)))
    with rank_here(model) as rank:
        assert rank.policy is not None
        batches = sft_batches(sequences, budget=64)
        assert len(batches) > 1
        actual = start_logprobs(rank.policy, batches, rank.compute.device, temperature=1.0)
    torch.testing.assert_close(torch.cat(actual), expected, rtol=1e-4, atol=1e-5)


def test_rank_micro_batches_do_not_change_the_update(model_dir: Path) -> None:
    """Smaller micro-batches and activation checkpointing give the same update."""
    groups = rollout_groups(4, 4)
    results = []
    for budget, recompute in ((4096, False), (48, False), (48, True)):
        with rank_here(model_dir, activation_checkpointing=recompute) as rank:
            (batches,) = grpo_batches(groups, budget=budget)
            tally = rank.grpo([batches], 1e-2, SETTINGS)
            results.append((len(batches), tally.maxima["grad_norm"], weights(rank)))
    assert results[0][0] < results[1][0]
    for _, norm, after in results[1:]:
        assert norm == pytest.approx(results[0][1], rel=1e-4)
        for name, tensor in after.items():
            torch.testing.assert_close(tensor, results[0][2][name], rtol=1e-3, atol=2e-4)


def test_rank_sft_steps_lower_the_loss(model_dir: Path) -> None:
    """The first loss equals transformers; thirty steps at least halve it."""
    batches = sft_batches(conversations(16))
    with rank_here(model_dir) as rank:
        losses = [rank.sft(batches, 3e-3).sums["loss"] for _ in range(30)]
    expected = -torch.cat(reference_logprobs(model_dir, conversations(16))).mean().item()
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < 0.5 * losses[0]


def test_rank_grpo_step_follows_the_advantages(model_dir: Path) -> None:
    """Tokens with positive advantage become more likely, others less; the first ratio is exactly 1."""
    groups = rollout_groups(4, 4)
    with rank_here(model_dir) as rank:
        assert rank.policy is not None
        updates = grpo_batches(groups)
        before = start_logprobs(rank.policy, updates[0], rank.compute.device, temperature=1.0)
        tally = rank.grpo(updates, 1e-3, SETTINGS)
        after = start_logprobs(rank.policy, updates[0], rank.compute.device, temperature=1.0)
    change = torch.cat(after) - torch.cat(before)
    advantages = torch.cat([torch.tensor(batch.advantages) for batch in updates[0]])
    assert change[advantages > 0].mean() > 0
    assert change[advantages < 0].mean() < 0
    # A single update starts from pi_old itself: the ratio is exactly 1, and no token is clipped.
    tokens = tally.sums["tokens"]
    assert tokens == sum(sum(rollout.mask) for group in groups for rollout in group)
    assert tally.sums["ratio"] == tokens
    assert tally.sums["clipped"] == 0
    assert tally.sums["mismatch"] == pytest.approx((torch.cat(before) + 4.0).abs().sum().item(), rel=1e-4)


def test_rank_later_updates_use_the_start_logprobs(model_dir: Path) -> None:
    """The ratios of later updates are relative to the policy at the start of the step."""
    groups = rollout_groups(1, 4)
    with rank_here(model_dir) as rank:
        update = grpo_batches(groups)[0]
        tally = rank.grpo([update, update, update], 5e-3, SETTINGS)
    tokens = tally.sums["tokens"]
    assert tally.maxima["ratio_max"] > 1.1
    assert 0 < tally.sums["clipped"] < tokens
    assert tally.sums["kl"] > 0


def test_rank_grpo_step_uses_the_temperature(model_dir: Path) -> None:
    """The entropy is that of the distribution at the sampling temperature."""
    groups = rollout_groups(1, 2)
    hot = GRPOSettings(temperature=2.0, importance_correction=ImportanceCorrection(enabled=True, cap=2.0))
    with rank_here(model_dir) as rank:
        assert rank.policy is not None
        (batches,) = grpo_batches(groups)
        warm = rank.grpo([batches], 0.0, SETTINGS)
        hotter = rank.grpo([batches], 0.0, hot)
    assert hotter.sums["entropy"] > warm.sums["entropy"]
    assert "correction" in hotter.sums
    assert "correction" not in warm.sums


def test_rank_skips_an_update_that_is_not_finite(model_dir: Path) -> None:
    """A NaN gradient leaves the weights unchanged and is counted; the next update is healthy."""
    (bad,) = rollout_groups(1, 1)
    group = [replace(bad[0], advantage=float("nan"))]
    with rank_here(model_dir) as rank:
        before = weights(rank)
        tally: MetricTally = rank.grpo(grpo_batches([group]), 1e-2, SETTINGS)
        after = weights(rank)
        healthy = rank.grpo(grpo_batches(rollout_groups(1, 2)), 1e-2, SETTINGS)
    assert tally.maxima["skipped"] == 1
    assert healthy.maxima["skipped"] == 0
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_rank_kl_term_compares_with_the_reference(model_dir: Path, tmp_path: Path) -> None:
    """The metric is the mean estimate to the reference; it is 0 to the policy itself; the reference never changes."""
    other = write_model(tmp_path / "other", seed=8)
    settings = GRPOSettings(reference_kl=ReferenceKL(weight=0.5))
    batches = grpo_batches(rollout_groups(2, 4))[0]
    tallies, changed, expected = [], [], 0.0
    for reference in (model_dir, other):
        with rank_here(model_dir, reference=reference) as rank:
            assert rank.policy is not None and rank.reference is not None
            own, theirs = (
                torch.cat(start_logprobs(policy, batches, rank.compute.device, temperature=1.0)).double()
                for policy in (rank.policy, rank.reference)
            )
            expected = (torch.exp(theirs - own) - 1 + own - theirs).sum().item()
            rank.sleep()
            rank.wake_up()
            tallies.append(rank.grpo([batches], 1e-2, settings))
            after = torch.cat(start_logprobs(rank.reference, batches, rank.compute.device, temperature=1.0))
            assert torch.equal(after.double(), theirs)
            assert not any(parameter.requires_grad for parameter in rank.reference.parameters())
            changed.append(weights(rank))
    assert tallies[0].sums["reference_kl"] == 0
    assert tallies[1].sums["reference_kl"] == pytest.approx(expected, rel=1e-5)
    assert any(not torch.equal(changed[0][name], tensor) for name, tensor in changed[1].items())
    with rank_here(model_dir) as rank:
        rank.grpo([batches], 1e-2, SETTINGS)
        plain = weights(rank)
    # To itself the divergence is at its minimum: no gradient.
    assert all(torch.allclose(plain[name], tensor, atol=1e-7) for name, tensor in changed[0].items())


def test_rank_refuses_a_reference_of_another_tokenizer(model_dir: Path, tmp_path: Path) -> None:
    """The message names both folders and the difference."""
    other = write_model(tmp_path / "other")
    (other / "tokenizer.json").write_text("{ }")
    message = r"cannot be the teacher or the reference of .*its tokenizer\.json has SHA-256"
    with pytest.raises(UnsupportedModel, match=message), rank_here(model_dir, reference=other):
        pass


@pytest.mark.parametrize(("adapter", "offload"), [(None, False), (LoRASpec(rank=8), False), (LoRASpec(rank=8), True)])
def test_rank_sleeping_memory_returns_bit_for_bit(model_dir: Path, adapter: LoRASpec | None, offload: bool) -> None:
    """Memory of a sleeping rank is free on the device and unusable; afterwards training continues unchanged.

    With offload the weights are also those of a rank without it.
    """
    batches = sft_batches(conversations(6))
    results = []
    for sleeps in (False, True):
        with rank_here(model_dir, lora=adapter, offload=offload and sleeps) as rank:
            assert rank.policy is not None
            for _ in range(3):
                rank.sft(batches, 1e-2)
                if not sleeps:
                    continue
                rank.sleep()
                rank.sleep()  # a second request has no effect
                shards = [shard.to_local() for shard in named_shards(rank.policy).values()]
                assert not any(shard.untyped_storage().nbytes() for shard in shards)
                with pytest.raises(RuntimeError, match=r"call wake_up\(\) first"):
                    rank.sft(batches, 1e-2)
                rank.wake_up()
            results.append(weights(rank))
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())


def test_rank_sleep_moves_the_weights_published_last(model_dir: Path, tmp_path: Path) -> None:
    """The base of the next changes leaves the device too; the changes after the return have the same bytes."""
    files = []
    for sleeps in (False, True):
        with rank_here(model_dir) as rank:
            rank.start_versions(model_dir)
            for number, base in enumerate((None, "v0", "v1")):
                rank.sft(sft_batches(conversations(6, seed=number)), 1e-6)
                folder = tmp_path / f"{sleeps}-{number}"
                folder.mkdir()
                summary = rank.write_version(folder, base)
                rank.commit_version(f"v{number}")
                files.append((folder / summary.name).read_bytes())
                if sleeps:
                    assert rank.writer is not None
                    # Copies on the CPU share no memory with NumPy, like the tensors of a GPU.
                    rank.writer._committed = {name: each.clone() for name, each in rank.writer._committed.items()}
                    rank.sleep()
                    assert not any(each.untyped_storage().nbytes() for each in rank.writer.tensors())
                    rank.wake_up()
    assert files[:3] == files[3:]


def test_rank_optimizer_equals_torch_adamw(model_dir: Path) -> None:
    """Two steps of the rank against AdamW over the plain model, clip included."""
    sequences = conversations(6)
    plain = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    adam = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.01)
    trained = sum(sum(sequence.mask) for sequence in sequences)
    norms = []
    for _ in range(2):
        loss = torch.zeros(())
        for sequence in sequences:
            ids = torch.tensor([sequence.ids.tolist()])
            table = torch.log_softmax(plain(ids).logits[0, :-1], dim=-1)
            chosen = table.gather(1, ids[0, 1:, None]).squeeze(1)
            loss = loss - (chosen * torch.tensor(sequence.mask[1:])).sum() / trained
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0).item())
        adam.step()
        adam.zero_grad()
    with rank_here(model_dir) as rank:
        batches = sft_batches(sequences)
        actual = [rank.sft(batches, 1e-2).maxima["grad_norm"] for _ in range(2)]
        after = weights(rank)
    assert actual == pytest.approx(norms, rel=1e-3)
    expected = dict(plain.named_parameters())
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize(("tied", "dtype"), [(True, "float32"), (False, "float32"), (True, "bfloat16")])
def test_rank_export_loads_in_transformers(tmp_path: Path, tied: bool, dtype: str) -> None:
    """The exported folder has the same log-probabilities, dtype and files."""
    source = write_model(tmp_path / "source", tied=tied, dtype=dtype)
    target = tmp_path / "target"
    target.mkdir()
    sequences = conversations(5)
    with rank_here(source) as rank:
        assert rank.policy is not None
        rank.sft(sft_batches(sequences), 1e-2)
        actual = start_logprobs(rank.policy, sft_batches(sequences), rank.compute.device, temperature=1.0)
        rank.export(source, target)
    ordered = sorted(sequences, key=lambda sequence: len(sequence.ids), reverse=True)
    exact = dtype == "float32"
    torch.testing.assert_close(
        torch.cat(actual),
        torch.cat(reference_logprobs(target, ordered)),
        rtol=1e-4 if exact else 0.1,
        atol=1e-5 if exact else 0.1,
    )
    assert (target / "tokenizer.json").read_text() == "{}"
    stored = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert stored.dtype == getattr(torch, dtype)
    files = {path.name for path in target.iterdir()}
    assert files == {path.name for path in source.iterdir()}


def test_rank_export_splits_large_models(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model is written in several files, with tied weights once, and loads again."""
    monkeypatch.setattr(export, "FILE_BYTES", 20_000)
    target = tmp_path / "target"
    target.mkdir()
    with rank_here(model_dir) as rank:
        rank.export(model_dir, target)
    assert len(list(target.glob("model-*-of-*.safetensors"))) > 1
    assert not (target / "model.safetensors").exists()
    assert "lm_head" not in (target / "model.safetensors.index.json").read_text()
    first, second = reference_logprobs(model_dir, conversations(1)), reference_logprobs(target, conversations(1))
    torch.testing.assert_close(first, second)
    with rank_here(target) as rank:
        again = weights(rank)
    assert again["model.embed_tokens.weight"].shape == (VOCABULARY, 32)


def test_rank_load_without_weights_raises(tmp_path: Path, model_dir: Path) -> None:
    """A model folder without safetensors is rejected."""
    (tmp_path / "config.json").write_text((model_dir / "config.json").read_text())
    with rank_here(None) as rank, pytest.raises(UnsupportedModel, match="no safetensors"):
        rank.load(tmp_path, OPTIMIZER)


def test_rank_load_weights_of_another_model_raises(tmp_path: Path, model_dir: Path) -> None:
    """Tensors of another shape, and missing tensors, are named."""
    text = (model_dir / "config.json").read_text()
    (tmp_path / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(text.replace('"hidden_size": 32', '"hidden_size": 64'))
    with rank_here(None) as rank, pytest.raises(ValueError, match=r"has shape .*config.json requires"):
        rank.load(tmp_path, OPTIMIZER)
    (tmp_path / "config.json").write_text(text.replace('"attention_bias": false', '"attention_bias": true'))
    with rank_here(None) as rank, pytest.raises(ValueError, match=r"missing \['model.layers.0.self_attn"):
        rank.load(tmp_path, OPTIMIZER)


def test_rank_missing_accelerator_raises(model_dir: Path) -> None:
    """The error names the vendor of the job."""
    if torch.cuda.is_available():
        pytest.skip("this machine has an accelerator")
    with (
        pytest.raises(RuntimeError, match=r"vendor is AMD, but torch finds no accelerator"),
        rank_here(model_dir, vendor="AMD"),
    ):
        pass


def test_rank_rollout_without_trained_tokens_is_skipped(model_dir: Path) -> None:
    """A rollout whose budget was used up before its first token changes nothing, also as the only one of a pass."""
    groups = rollout_groups(2, 2)
    empty = replace(groups[0][0], mask=np.zeros_like(groups[0][0].mask))
    norms = []
    for first in ([empty, groups[0][1]], [groups[0][1]]):
        with rank_here(model_dir) as rank:
            (batches,) = grpo_batches([first, groups[1]], budget=1)
            norms.append(rank.grpo([batches], 1e-3, GRPOSettings()).maxima["grad_norm"])
    assert norms[0] == norms[1] > 0


def test_rank_restore_resets_the_optimizer_in_place(model_dir: Path, tmp_path: Path) -> None:
    """Moments become zero without a second optimiser, whose memory would be 8 bytes per parameter more."""
    with rank_here(model_dir) as rank:
        rank.snapshot_state()
        (tmp_path / "checkpoint").mkdir()
        rank.write_checkpoint(tmp_path / "checkpoint")
        rank.sft(sft_batches(conversations(3)), 1e-3)
        before = rank.optimizer
        rank.restore(tmp_path / "checkpoint", True)
        assert rank.optimizer is before
        values = [value for state in before.state.values() for value in state.values()]
        assert not any(bool(value.any()) for value in values)


def test_rank_checkpoint_copies_each_tensor_once(model_dir: Path) -> None:
    """Training waits for the copy: its bytes are those of the weights and moments, not twice as many."""
    copied = 0

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal copied
            if str(function).startswith(("aten.copy_", "aten.clone", "aten._to_copy")):
                copied += args[0].nbytes
            return function(*args, **(kwargs or {}))

    with rank_here(model_dir) as rank:
        policy, optimizer = rank._loaded()
        tensors = [*policy.parameters(), *(each for state in optimizer.state.values() for each in state.values())]
        expected = sum(tensor.nbytes for tensor in tensors) + torch.get_rng_state().nbytes
        with Copies():
            rank.snapshot_state()
        assert rank.snapshot is not None
        copy = rank.snapshot["model"]["model.norm.weight"]
        rank.sft(sft_batches(conversations(3)), 1e-2)
        assert not torch.equal(copy.to_local(), named_shards(policy)["model.norm.weight"].to_local())
    assert copied == expected
