"""One rank on a GPU: bfloat16 compute and NCCL or RCCL, compared with float32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import conversations, rank_here, rollout_groups

from rstar2_train.api.lora import LoRASpec
from rstar2_train.api.roles import Vendor
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.trainer.batching import MicroBatch, distribute_rows, grpo_updates, sft_rows
from rstar2_train.trainer.model import named_shards
from rstar2_train.trainer.step import start_logprobs

pytestmark = pytest.mark.gpu
VENDOR: Vendor = "AMD" if torch.version.hip else "NVIDIA"
VENDORS: tuple[Vendor, ...] = ("None", VENDOR)


def sft_batches() -> list[MicroBatch]:
    return distribute_rows(sft_rows(conversations(9)), ranks=1, tokens_per_micro_batch=64)[0]


def test_rank_gpu_logprobs_match_cpu(model_dir: Path) -> None:
    """The log-probabilities of trained tokens differ from the CPU's by bfloat16 rounding only."""
    results = []
    for vendor in VENDORS:
        with rank_here(model_dir, vendor=vendor) as rank:
            assert rank.policy is not None
            logprobs = start_logprobs(rank.policy, sft_batches(), rank.compute.device, temperature=1.0)
            results.append(torch.cat(logprobs).float().cpu())
    torch.testing.assert_close(results[1], results[0], rtol=0.1, atol=0.1)


def test_rank_gpu_sft_steps_lower_loss(model_dir: Path) -> None:
    """Thirty supervised steps on the same batches at least halve the loss."""
    with rank_here(model_dir, vendor=VENDOR) as rank:
        assert rank.compute.device.type == "cuda"
        losses = [rank.sft(sft_batches(), 3e-3).sums["loss"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_rank_gpu_grpo_step_follows_advantages(model_dir: Path) -> None:
    """After one GRPO step, tokens of good rollouts are more likely than before and those of bad ones less."""
    update = [row for group in grpo_updates(rollout_groups(4, 4), updates=1, seed=0)[0] for row in group]
    batches = distribute_rows(update, ranks=1, tokens_per_micro_batch=256)[0]
    with rank_here(model_dir, vendor=VENDOR) as rank:
        assert rank.policy is not None
        before = start_logprobs(rank.policy, batches, rank.compute.device, temperature=1.0)
        rank.grpo([batches], 1e-2, GRPOSettings())
        after = start_logprobs(rank.policy, batches, rank.compute.device, temperature=1.0)
    change = (torch.cat(after) - torch.cat(before)).float().cpu()
    advantages = torch.cat([torch.tensor(batch.advantages) for batch in batches])
    assert change[advantages > 0].mean() > 0
    assert change[advantages < 0].mean() < 0


@pytest.mark.parametrize("adapter", [None, LoRASpec(rank=8)])
def test_rank_gpu_offload_keeps_shards_in_pinned_memory(model_dir: Path, adapter: LoRASpec | None) -> None:
    """Between the updates no shard is on the GPU, also after a turn of the engine; the losses are those without it."""
    losses = []
    for offload in (False, True):
        with rank_here(model_dir, vendor=VENDOR, lora=adapter, offload=offload) as rank:
            assert rank.policy is not None
            losses.append([])
            for _ in range(4):
                losses[-1].append(rank.sft(sft_batches(), 1e-2).sums["loss"])
                rank.sleep()
                rank.wake_up()
                shards = [shard.to_local() for shard in named_shards(rank.policy).values()]
                assert all(shard.is_pinned() if offload else shard.is_cuda for shard in shards)
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
