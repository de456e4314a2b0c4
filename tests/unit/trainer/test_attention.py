"""Attention over packed sequences, and the probe for a flash kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rstar2_train.trainer.attention import Packing, attend, check_flash, packing_of, positions_of, supports

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


@pytest.mark.parametrize("kernel", [True, False], ids=["variable-length", "per-sequence"])
def test_attend_compiles_for_any_number_of_sequences(kernel: bool) -> None:
    """The numbers and lengths of the sequences cause no new graphs: torch stops to compile after eight of them."""
    torch.compiler.reset()
    graphs: list[Any] = []

    def count(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph

    def layer(hidden: torch.Tensor, packing: Packing) -> torch.Tensor:
        query, key = (hidden[..., :width].unflatten(-1, (-1, 8)).transpose(1, 2) for width in (32, 16))
        return attend(None, query * 2, key, key, None, scaling=0.3, packing=packing)[0] + 1

    # Without a GPU, tensors without memory have the shapes of the kernel, and the compiled code is not executed.
    device = torch.device("meta") if kernel else CPU
    compiled = torch.compile(layer, backend=count, fullgraph=kernel)
    first = 0
    for sequences in range(1, 20):
        lengths = tuple(range(3, 3 + sequences))
        borders = torch.zeros(sequences + 1, dtype=torch.int32, device=device) if kernel else None
        hidden = torch.ones(1, sum(lengths), 32, device=device)
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            assert compiled(hidden, Packing(lengths, max(lengths), borders)).shape == (1, sum(lengths), 4, 8)
        first = first or len(graphs)
    assert first
    # The first shape has graphs of its own; the others share graphs with dynamic sizes.
    assert len(graphs) <= 3 * first


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
