"""Chunked log-probabilities compared with the plain computation, in value and gradient."""

from __future__ import annotations

import pytest
import torch

from rstar2_train.capacity.model_support import OutputLayer
from rstar2_train.trainer.logprobs import token_logprobs


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_logprobs_equal_the_plain_computation(chunk: int, temperature: float) -> None:
    """Values, entropies and gradients equal a log-softmax over all logits, for any chunk size."""
    torch.manual_seed(0)
    hidden = torch.randn(50, 8, requires_grad=True)
    head = torch.randn(31, 8, requires_grad=True)
    targets = torch.randint(0, 31, (50,))
    weights = torch.randn(50)

    plain = torch.log_softmax(hidden @ head.t() / temperature, dim=-1)
    expected = plain[torch.arange(50), targets]
    gradients = torch.autograd.grad((expected * weights).sum(), [hidden, head])

    logprobs, entropies = token_logprobs(
        hidden=hidden, head=head, targets=targets, chunk=chunk, temperature=temperature
    )
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(entropies, torch.distributions.Categorical(logits=plain.detach()).entropy())
    assert not entropies.requires_grad
    chunked = torch.autograd.grad((logprobs * weights).sum(), [hidden, head])
    torch.testing.assert_close(chunked, gradients)


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize(
    ("layer", "biased"),
    [(OutputLayer(scale=0.125), False), (OutputLayer(scale=0.0625), True), (OutputLayer(softcap=3.0), False)],
    ids=["scale", "scale and bias", "cap"],
)
def test_token_logprobs_output_layer_of_the_model(layer: OutputLayer, biased: bool, chunk: int) -> None:
    """Scale, bias and soft cap: values and gradients equal the plain computation."""
    torch.manual_seed(0)
    hidden, head = torch.randn(50, 8, requires_grad=True), torch.randn(31, 8, requires_grad=True)
    bias = torch.randn(31, requires_grad=True) if biased else None
    targets, weights = torch.randint(0, 31, (50,)), torch.randn(50)
    logits = hidden @ head.t() if bias is None else hidden @ head.t() + bias
    logits = logits * layer.scale
    if layer.softcap is not None:
        logits = layer.softcap * torch.tanh(logits / layer.softcap)
    expected = torch.log_softmax(logits / 0.7, dim=-1)[torch.arange(50), targets]
    inputs = [hidden, head] if bias is None else [hidden, head, bias]
    gradients = torch.autograd.grad((expected * weights).sum(), inputs)
    logprobs, _ = token_logprobs(
        hidden=hidden, head=head, targets=targets, chunk=chunk, temperature=0.7, bias=bias, layer=layer
    )
    torch.testing.assert_close(logprobs, expected)
    torch.testing.assert_close(torch.autograd.grad((logprobs * weights).sum(), inputs), gradients)


def test_token_logprobs_without_targets_have_gradients() -> None:
    """The gradients are zero, not missing: other ranks wait for the collectives of the backward pass."""
    hidden, head = torch.randn(0, 8, requires_grad=True), torch.randn(31, 8, requires_grad=True)
    logprobs, entropies = token_logprobs(hidden=hidden, head=head, targets=torch.zeros(0, dtype=torch.long), chunk=4)
    assert logprobs.shape == entropies.shape == (0,)
    gradient = torch.autograd.grad(logprobs.sum(), [hidden, head])[1]
    torch.testing.assert_close(gradient, torch.zeros(31, 8))


def test_token_logprobs_keep_no_full_logits() -> None:
    """Autograd saves far less than the vocabulary-wide logits."""
    hidden = torch.randn(512, 4, requires_grad=True)
    head = torch.randn(1000, 4, requires_grad=True)
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept = max(kept, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        token_logprobs(hidden=hidden, head=head, targets=torch.zeros(512, dtype=torch.long), chunk=64)
    assert kept <= 64 * 1000


def test_token_logprobs_without_gradients() -> None:
    """Without gradients the values are the same."""
    torch.manual_seed(0)
    hidden, head, targets = torch.randn(20, 4), torch.randn(9, 4), torch.randint(0, 9, (20,))
    with torch.no_grad():
        logprobs, _ = token_logprobs(hidden=hidden, head=head, targets=targets, chunk=6)
    torch.testing.assert_close(logprobs, torch.log_softmax(hidden @ head.t(), -1)[torch.arange(20), targets])


@pytest.mark.parametrize("chunk", [3, 16])
def test_token_logprobs_pass_gradcheck(chunk: int) -> None:
    """The backward pass equals numerical differentiation in float64, for several chunks and for one."""
    torch.manual_seed(0)
    hidden = torch.randn(10, 4, dtype=torch.float64, requires_grad=True)
    head = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (10,))

    def logprobs(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        return token_logprobs(hidden=hidden, head=head, targets=targets, chunk=chunk, temperature=0.7)[0]

    assert torch.autograd.gradcheck(logprobs, (hidden, head))


def test_token_logprobs_of_bfloat16_have_float32_logits() -> None:
    """16-bit inputs lose nothing in the logits; logits rounded to bfloat16 would be off by 1e-3 nats and more."""
    torch.manual_seed(0)
    hidden, head = torch.randn(64, 256).bfloat16(), (torch.randn(500, 256) / 8).bfloat16()
    targets = torch.randint(0, 500, (64,))
    exact = torch.log_softmax(hidden.double() @ head.double().t(), -1)[torch.arange(64), targets]
    rounded = torch.log_softmax((hidden @ head.t()).float(), -1)[torch.arange(64), targets]
    actual, _ = token_logprobs(hidden=hidden, head=head, targets=targets, chunk=16)
    assert (actual - exact).abs().max() < 1e-5
    assert (rounded - exact).abs().mean() > 1e-3


def test_token_logprobs_accumulate_the_head_in_float32() -> None:
    """The gradient of a bfloat16 head is rounded once, not once per chunk."""
    torch.manual_seed(0)
    hidden = torch.randn(64, 16).bfloat16()
    head = torch.randn(50, 16).bfloat16().requires_grad_()
    targets = torch.randint(0, 50, (64,))
    gradients = []
    for chunk in (4, 64):
        logprobs, _ = token_logprobs(hidden=hidden, head=head, targets=targets, chunk=chunk)
        gradients.append(torch.autograd.grad(logprobs.sum(), head)[0])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=8e-3, atol=0.0)
