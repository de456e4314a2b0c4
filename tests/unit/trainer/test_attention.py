"""Attention over packed sequences, and the probe for a flash kernel."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rstar2_train.trainer import attention, varlen
from rstar2_train.trainer.attention import Packing, attend, check_flash, packing_of, positions_of, supports

CPU = torch.device("cpu")


def test_attend_packed_equals_each_sequence_alone() -> None:
    """No token attends to another sequence; values and gradients equal those of separate calls."""
    torch.manual_seed(0)
    lengths = (5, 1, 9)
    query = torch.randn(1, 4, 15, 8, requires_grad=True)
    key, value = torch.randn(1, 2, 15, 8, requires_grad=True), torch.randn(1, 2, 15, 8)
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    packed, _ = attend(module, query, key, value, None, scaling=0.3, packing=packing_of(lengths, CPU, kernel=False))
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
    """Layers of other kinds keep the attention of transformers."""
    assert supports(SimpleNamespace(layer_types=["full_attention", "sliding_attention"]))
    assert supports(SimpleNamespace(sliding_window=128))
    assert not supports(SimpleNamespace(layer_types=["full_attention", "linear_attention"]))


def plain_scores(query: Tensor, key: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the shares of one row by the definition, [heads, tokens, tokens], with all scores in memory."""
    scores = query[0] @ key[0].repeat_interleave(2, dim=0).transpose(1, 2) * 0.3
    if (cap := options.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    distance = torch.arange(scores.shape[1])[:, None] - torch.arange(scores.shape[2])
    hidden = (distance < 0) | (distance >= options.get("sliding_window", 10**6))
    scores = scores.masked_fill(hidden, float("-inf")).exp()
    sinks = options["s_aux"].exp()[:, None, None] if "s_aux" in options else 0.0
    return scores / (scores.sum(dim=2, keepdim=True) + sinks)


@pytest.mark.parametrize(
    "options",
    [
        {"sliding_window": 5},
        {"softcap": 2.0},
        {"softcap": 2.0, "sliding_window": 5},
        {"s_aux": torch.tensor([0.5, -1.0, 2.0, 0.0]), "sliding_window": 5},
    ],
    ids=["window", "cap", "cap and window", "sinks"],
)
def test_attend_equals_the_definition(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, soft caps and sinks, packed and alone, in blocks of queries smaller than a window and a sequence."""
    monkeypatch.setattr(attention, "BLOCK", 4)
    torch.manual_seed(0)
    lengths = (19, 1, 7)
    query, slope = torch.randn(1, 4, 27, 8).double().requires_grad_(), torch.randn(1, 27, 4, 8).double()
    key, value = (torch.randn(1, 2, 27, 8).double().requires_grad_() for _ in range(2))
    packed, _ = attend(
        None, query, key, value, None, scaling=0.3, packing=packing_of(lengths, CPU, kernel=False), **options
    )
    expected = torch.cat(
        [
            (plain_scores(q, k, options) @ v[0].repeat_interleave(2, dim=0)).transpose(0, 1)[None]
            for q, k, v in zip(*(part.split(lengths, dim=2) for part in (query, key, value)), strict=True)
        ],
        dim=1,
    )
    torch.testing.assert_close(packed, expected, rtol=1e-5, atol=1e-6)
    inputs = [query, key, value]
    gradients = torch.autograd.grad((packed * slope).sum(), inputs)
    torch.testing.assert_close(gradients, torch.autograd.grad((expected * slope).sum(), inputs), rtol=1e-4, atol=1e-5)


def test_attend_mask_is_refused() -> None:
    """A mask would be ignored."""
    part = torch.ones(1, 1, 2, 4)
    with pytest.raises(ValueError, match="passes a mask"):
        attend(None, part, part, part, torch.ones(1, 1, 2, 2))


@pytest.mark.parametrize("grouped", [True, False], ids=["2.12 and later", "2.11"])
def test_varlen_arguments_of_each_torch(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of torch 2.11 has no flag for grouped heads; it is used all the same, with the model's window."""
    calls: list[dict[str, Any]] = []

    def kernel_211(query: Tensor, *_: Any, scale: float, window_size: tuple[int, int]) -> Tensor:
        calls.append({"window_size": window_size})
        return query

    def kernel_212(query: Tensor, *_: Any, scale: float, window_size: tuple[int, int], enable_gqa: bool) -> Tensor:
        calls.append({"window_size": window_size, "enable_gqa": enable_gqa})
        return query

    kernel = kernel_212 if grouped else kernel_211
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    monkeypatch.setattr(varlen, "PARAMETERS", frozenset(inspect.signature(kernel).parameters))
    query, key = torch.ones(6, 4, 8), torch.ones(6, 2, 8)
    borders = torch.tensor([0, 2, 6], dtype=torch.int32)
    for window in (None, 3):
        varlen.attend_varlen(query, key, key, borders, 4, scaling=0.3, window=window)
    flag = {"enable_gqa": True} if grouped else {}
    assert calls == [{"window_size": (-1, 0)} | flag, {"window_size": (2, 0)} | flag]


def test_find_obstacle_takes_the_kernel_of_torch_211(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only windows are needed from the signature, and the trial decides; an older kernel is named."""
    config, device = SimpleNamespace(num_attention_heads=4, hidden_size=32), torch.device("cuda")
    monkeypatch.setattr(varlen, "_trial_error", lambda *_: 0.0)
    for parameters, obstacle in (("window_size", None), ("query", "has none with causal windows")):
        monkeypatch.setattr(varlen, "PARAMETERS", frozenset({parameters}))
        reason = varlen.find_obstacle(config, device, torch.bfloat16)
        assert reason == obstacle or (reason and obstacle and obstacle in reason)
    monkeypatch.setattr(varlen, "PARAMETERS", frozenset({"window_size"}))
    assert "has sinks" in str(varlen.find_obstacle(config, device, torch.bfloat16, sinks=True))
    monkeypatch.setattr(varlen, "_trial_error", lambda *_: 1.0)
    assert "relative error is 1.000" in str(varlen.find_obstacle(config, device, torch.bfloat16))


def test_packing_has_no_guarded_values() -> None:
    """Torch 2.11 compiles a layer again for each value in a frozen dataclass, and gives up after eight."""
    assert not Packing.__dataclass_params__.frozen  # type: ignore[attr-defined]
