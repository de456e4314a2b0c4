"""The output head of an engine after a load of new weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rstar2_train.inference.host_weights import repack_tied_head

TIED = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(tie_word_embeddings=True)))


class Packed(nn.Linear):
    """A layer with a packed copy of its weights, as vLLM has on the CPU."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(*weight.T.shape, bias=False)
        self.weight = nn.Parameter(weight)
        self.quant_method = self
        self.process_weights_after_loading(self)

    def process_weights_after_loading(self, layer: Any) -> None:
        self.packed = layer.weight.detach().clone()


class Model(nn.Module):
    """A model of vLLM with a tied head, or as Gemma 2 and Cohere without one."""

    def __init__(self, *, head: bool) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = Packed(torch.ones(4, 2))
        if head:
            self.lm_head = Packed(torch.zeros(4, 2))


def test_repack_tied_head_has_the_embedding() -> None:
    """The head computes with the new weights of the embedding."""
    model = Model(head=True)
    repack_tied_head(model, TIED)
    assert torch.equal(model.lm_head.packed, model.model.embed_tokens.weight)


def test_repack_tied_head_without_a_head() -> None:
    """The embedding of Gemma 2 and Cohere is the head itself."""
    repack_tied_head(Model(head=False), TIED)
