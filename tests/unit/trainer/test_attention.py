"""Attention over packed sequences, and the probe for a flash kernel."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rstar2_train.trainer.attention import attend, check_flash, packing_of, positions_of, supports

CPU = torch.device("cpu")


def test_attend_packed_equals_each_sequence_alone() -> None:
    """No token attends to another sequence; values and gradients equal those of separate calls."""
    torch.manual_seed(0)
    lengths = (5, 1, 9)
    query = torch.randn(1, 4, 15, 8, requires_grad=True)
    key, value = torch.randn(1, 2, 15, 8, requires_grad=True), torch.randn(1, 2, 15, 8)
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    packed, _ = attend(module, query, key, value, None, scaling=0.3, packing=packing_of(lengths, CPU, torch.float32))
    alone = [
        attend(module, q, k, v, None, scaling=0.3)[0]
        for q, k, v in zip(*(part.split(lengths, dim=2) for part in (query, key, value)), strict=True)
    ]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1))
    slope = torch.randn_like(packed)
    gradients = torch.autograd.grad((packed * slope).sum(), [query, key])
    torch.testing.assert_close(gradients, torch.autograd.grad((torch.cat(alone, dim=1) * slope).sum(), [query, key]))
    assert positions_of(lengths, CPU).tolist() == [[0, 1, 2, 3, 4, 0, *range(9)]]


def test_check_flash_without_a_kernel_raises() -> None:
    """The message has the heads, the fix and the reason of torch."""
    config = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, hidden_size=32, head_dim=8)
    check_flash(config, CPU, torch.float32)
    config.num_key_value_heads = 3  # no kernel shares 3 key heads among 4 query heads
    with pytest.raises(RuntimeError, match=r"no flash attention on cpu for 4 query heads.*AOTriton.*Reason: "):
        check_flash(config, CPU, torch.float32)


def test_supports_full_attention_only() -> None:
    """Sliding windows keep the attention of transformers."""
    assert supports(SimpleNamespace(layer_types=["full_attention"] * 2))
    assert not supports(SimpleNamespace(layer_types=["full_attention", "sliding_attention"]))
    assert not supports(SimpleNamespace(sliding_window=128))
