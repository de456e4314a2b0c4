"""One rank in this process, with the real sharded model: what it computes, learns, and writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import OPTIMIZER, VOCABULARY, conversations, rank_here, rollout_groups, write_model
from transformers import AutoModelForCausalLM

from rstar2_train.trainer import export
from rstar2_train.trainer.batching import MicroBatch, grpo_updates, sft_rows, share_out
from rstar2_train.trainer.model import named_shards
from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.step import start_logprobs
from rstar2_train.trainer.types import MetricTally, Objective, TokenizedExample, TrainSequence

OBJECTIVE = Objective(clip_low=0.2, clip_high=0.28, temperature=1.0, correction_cap=None)


def sft_batches(sequences: list[TokenizedExample], budget: int = 256) -> list[MicroBatch]:
    return share_out(sft_rows(sequences), ranks=1, tokens_per_micro_batch=budget)[0]


def grpo_batches(groups: list[list[TrainSequence]], updates: int = 1, budget: int = 256) -> list[list[MicroBatch]]:
    return [
        share_out([row for group in update for row in group], ranks=1, tokens_per_micro_batch=budget)[0]
        for update in grpo_updates(groups, updates=updates, seed=0)
    ]


def weights(rank: TrainerRank) -> dict[str, torch.Tensor]:
    assert rank.policy is not None
    return {name: shard.full_tensor().detach().clone() for name, shard in named_shards(rank.policy).items()}


def reference_logprobs(model: Path, sequences: list[TokenizedExample]) -> list[torch.Tensor]:
    """Log-probabilities of the learned tokens, each sequence alone, with transformers."""
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    for sequence in sequences:
        ids = torch.tensor([list(sequence.ids)])
        with torch.no_grad():
            table = torch.log_softmax(plain(ids).logits[0, :-1], dim=-1)
        found.append(table.gather(1, ids[0, 1:, None]).squeeze(1)[torch.tensor(sequence.mask[1:], dtype=torch.bool)])
    return found


@pytest.mark.parametrize("tied", [True, False])
def test_logprobs_are_those_of_transformers_whatever_the_packing(tmp_path: Path, tied: bool) -> None:
    model = write_model(tmp_path / "m", tied=tied)
    sequences = conversations(9)
    expected = torch.cat(reference_logprobs(model, sorted(sequences, key=lambda s: len(s.ids), reverse=True)))
    with rank_here(model) as rank:
        assert rank.policy is not None
        batches = sft_batches(sequences, budget=64)
        assert len(batches) > 1
        found = start_logprobs(rank.policy, batches, rank.compute.device, temperature=1.0)
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-4, atol=1e-5)


def test_micro_batches_and_checkpointed_activations_change_nothing(model_dir: Path) -> None:
    groups = rollout_groups(4, 4)
    results = []
    for budget, recompute in ((4096, False), (48, False), (48, True)):
        with rank_here(model_dir, activation_checkpointing=recompute) as rank:
            (batches,) = grpo_batches(groups, budget=budget)
            tally = rank.grpo([batches], 1e-2, OBJECTIVE)
            results.append((len(batches), tally.maxima["grad_norm"], weights(rank)))
    assert results[0][0] < results[1][0]
    for _, norm, after in results[1:]:
        assert norm == pytest.approx(results[0][1], rel=1e-4)
        for name, tensor in after.items():
            torch.testing.assert_close(tensor, results[0][2][name], rtol=1e-3, atol=2e-4)


def test_supervised_steps_learn(model_dir: Path) -> None:
    batches = sft_batches(conversations(16))
    with rank_here(model_dir) as rank:
        losses = [rank.sft(batches, 3e-3).sums["loss"] for _ in range(30)]
    expected = -torch.cat(reference_logprobs(model_dir, conversations(16))).mean().item()
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < 0.5 * losses[0]


def test_a_grpo_step_raises_what_was_good_and_lowers_what_was_bad(model_dir: Path) -> None:
    groups = rollout_groups(4, 4)
    with rank_here(model_dir) as rank:
        assert rank.policy is not None
        updates = grpo_batches(groups)
        before = start_logprobs(rank.policy, updates[0], rank.compute.device, temperature=1.0)
        tally = rank.grpo(updates, 1e-3, OBJECTIVE)
        after = start_logprobs(rank.policy, updates[0], rank.compute.device, temperature=1.0)
    change = torch.cat(after) - torch.cat(before)
    advantages = torch.cat([torch.tensor(batch.advantages) for batch in updates[0]])
    assert change[advantages > 0].mean() > 0
    assert change[advantages < 0].mean() < 0
    # The step's only update starts from pi_old itself: the ratio is exactly 1 and nothing is clipped.
    tokens = tally.sums["tokens"]
    assert tokens == sum(sum(rollout.mask) for group in groups for rollout in group)
    assert tally.sums["ratio"] == tokens
    assert tally.sums["clipped"] == 0
    assert tally.sums["mismatch"] == pytest.approx((torch.cat(before) + 4.0).abs().sum().item(), rel=1e-4)


def test_later_updates_of_a_step_are_measured_against_its_start(model_dir: Path) -> None:
    groups = rollout_groups(1, 4)
    with rank_here(model_dir) as rank:
        update = grpo_batches(groups)[0]
        tally = rank.grpo([update, update, update], 5e-3, OBJECTIVE)
    tokens = tally.sums["tokens"]
    assert tally.maxima["ratio_max"] > 1.1
    assert 0 < tally.sums["clipped"] < tokens
    assert tally.sums["kl"] > 0


def test_a_step_at_a_temperature_uses_that_distribution(model_dir: Path) -> None:
    groups = rollout_groups(1, 2)
    hot = Objective(clip_low=0.2, clip_high=0.28, temperature=2.0, correction_cap=2.0)
    with rank_here(model_dir) as rank:
        assert rank.policy is not None
        (batches,) = grpo_batches(groups)
        warm = rank.grpo([batches], 0.0, OBJECTIVE)
        hotter = rank.grpo([batches], 0.0, hot)
    assert hotter.sums["entropy"] > warm.sums["entropy"]
    assert "correction" in hotter.sums
    assert "correction" not in warm.sums


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(model_dir: Path) -> None:
    (bad,) = rollout_groups(1, 1)
    group = [TrainSequence(
        prompt_ids=bad[0].prompt_ids, response_ids=bad[0].response_ids, mask=bad[0].mask,
        engine_logprobs=bad[0].engine_logprobs, advantage=float("nan"),
    )]  # fmt: skip
    with rank_here(model_dir) as rank:
        before = weights(rank)
        tally: MetricTally = rank.grpo(grpo_batches([group]), 1e-2, OBJECTIVE)
        after = weights(rank)
        healthy = rank.grpo(grpo_batches(rollout_groups(1, 2)), 1e-2, OBJECTIVE)
    assert tally.maxima["skipped"] == 1
    assert healthy.maxima["skipped"] == 0
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_optimiser_is_that_of_torch(model_dir: Path) -> None:
    """Two steps of the rank against AdamW over the plain model, clip included."""
    sequences = conversations(6)
    plain = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    adam = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.01)
    learned = sum(sum(sequence.mask) for sequence in sequences)
    norms = []
    for _ in range(2):
        loss = torch.zeros(())
        for sequence in sequences:
            ids = torch.tensor([list(sequence.ids)])
            table = torch.log_softmax(plain(ids).logits[0, :-1], dim=-1)
            chosen = table.gather(1, ids[0, 1:, None]).squeeze(1)
            loss = loss - (chosen * torch.tensor(sequence.mask[1:])).sum() / learned
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0).item())
        adam.step()
        adam.zero_grad()
    with rank_here(model_dir) as rank:
        batches = sft_batches(sequences)
        found = [rank.sft(batches, 1e-2).maxima["grad_norm"] for _ in range(2)]
        after = weights(rank)
    assert found == pytest.approx(norms, rel=1e-3)
    expected = dict(plain.named_parameters())
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize(("tied", "dtype"), [(True, "float32"), (False, "float32"), (True, "bfloat16")])
def test_an_export_loads_in_transformers_with_equal_logits(tmp_path: Path, tied: bool, dtype: str) -> None:
    source = write_model(tmp_path / "source", tied=tied, dtype=dtype)
    target = tmp_path / "target"
    target.mkdir()
    sequences = conversations(5)
    with rank_here(source) as rank:
        assert rank.policy is not None
        rank.sft(sft_batches(sequences), 1e-2)
        found = start_logprobs(rank.policy, sft_batches(sequences), rank.compute.device, temperature=1.0)
        rank.export(source, target)
    ordered = sorted(sequences, key=lambda sequence: len(sequence.ids), reverse=True)
    exact = dtype == "float32"
    torch.testing.assert_close(
        torch.cat(found),
        torch.cat(reference_logprobs(target, ordered)),
        rtol=1e-4 if exact else 0.1,
        atol=1e-5 if exact else 0.1,
    )
    assert (target / "tokenizer.json").read_text() == "{}"
    stored = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert stored.dtype == getattr(torch, dtype)
    files = {path.name for path in target.iterdir()}
    assert files == {path.name for path in source.iterdir()}


def test_tied_weights_are_written_once_and_large_models_in_several_files(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_folder_without_weights_is_refused(tmp_path: Path, model_dir: Path) -> None:
    (tmp_path / "config.json").write_text((model_dir / "config.json").read_text())
    with rank_here(None) as rank, pytest.raises(FileNotFoundError, match="no safetensors"):
        rank.load(tmp_path, OPTIMIZER)


def test_weights_of_another_model_are_refused(tmp_path: Path, model_dir: Path) -> None:
    text = (model_dir / "config.json").read_text()
    (tmp_path / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(text.replace('"hidden_size": 32', '"hidden_size": 64'))
    with rank_here(None) as rank, pytest.raises(ValueError, match=r"has shape .*config.json asks for"):
        rank.load(tmp_path, OPTIMIZER)
    (tmp_path / "config.json").write_text(text.replace('"attention_bias": false', '"attention_bias": true'))
    with rank_here(None) as rank, pytest.raises(ValueError, match=r"missing \['model.layers.0.self_attn"):
        rank.load(tmp_path, OPTIMIZER)


def test_a_missing_accelerator_is_named(model_dir: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has an accelerator")
    with (
        pytest.raises(RuntimeError, match=r"vendor is AMD, but torch sees no accelerator"),
        rank_here(model_dir, vendor="AMD"),
    ):
        pass
