"""Replay of the experts that an engine chose, in the forward pass of a mixture of experts.

A router chooses the experts with the largest scores. Rounding, or weights that are a step older, change some choices,
and another expert changes a log-probability far more than rounding does. So the trainer computes each token with the
experts that the engine chose for it. Their weights come from the trainer's own router, by the arithmetic of the model:
the router has a gradient.

The choices of a micro-batch travel as an argument through the layers: activation checkpointing calls a layer again with
the same arguments, so a recomputation has the same experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer.transfers import to_device
from rstar2_train.weights.route_format import RouteFormat

ARGUMENT = "routing"
"""Name of the argument by which the layers of transformers receive a `Routing`."""
OWN = -1
"""Marks a token whose experts the trainer's own router chooses."""


# Not frozen: torch would guard its values when it compiles a layer.
@dataclass(slots=True)
class Routing:
    """The experts of the tokens of a micro-batch, and how many of them the trainer's own router would not choose."""

    chosen: Tensor
    """[layers, tokens, experts per token]; OWN in all places of a token that has none."""
    differing: dict[int, Tensor] = field(default_factory=dict)
    """Number of choices that differ, by layer."""
    compared: dict[int, Tensor] = field(default_factory=dict)
    """Number of replayed choices, by layer."""
    used: dict[int, list[Tensor]] | None = None
    """Experts that each call of each layer used, for tests and checks; None: they are not kept."""


def install_replay(model: Any) -> bool:
    """Let the routers of a model replay choices; return whether it is a mixture.

    Raises:
        UnsupportedModel: for a mixture whose routers are not known.
    """
    is_mixture = False
    for number, layer in enumerate(model.base_model.layers):
        names = [name for name, part in layer.named_modules() if type(part).__name__.endswith("TopKRouter")]
        experts = [name for name, part in layer.named_modules() if type(part).__name__.endswith("Experts")]
        if len(names) != len(experts) or len(names) > 1:
            raise UnsupportedModel(
                f"layer {number} of a {type(model).__name__} has the routers {names} and the experts {experts}: the "
                "trainer can replay the choices of one router per layer"
            )
        for name in names:
            is_mixture = True
            replay = _Replay(number, layer.get_submodule(name))
            layer.register_forward_pre_hook(replay.receive, with_kwargs=True)
    return is_mixture


class _Replay:
    """Replays the choices in one layer."""

    def __init__(self, layer: int, router: nn.Module) -> None:
        self._layer = layer
        self._routing: Routing | None = None
        self._own = router.forward
        # Compiled layers have a break here: the choices are data.
        router.forward = torch.compiler.disable(self._forward)

    def receive(
        self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Take the choices from the arguments of a call of the layer, which has none itself."""
        self._routing = named.get(ARGUMENT)
        return arguments, {name: value for name, value in named.items() if name != ARGUMENT}

    def _forward(self, *arguments: Any, **named: Any) -> Any:
        if self._routing is None:
            return self._own(*arguments, **named)
        with _ChosenExperts(self._routing, self._layer):
            return self._own(*arguments, **named)


class _ChosenExperts(TorchFunctionMode):
    """Replaces the largest scores by those of the chosen experts."""

    def __init__(self, routing: Routing, layer: int) -> None:
        super().__init__()
        self._routing, self._layer = routing, layer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return result
        routing, layer, own = self._routing, self._layer, result[1]
        chosen = routing.chosen[layer].long()
        known = chosen[:, :1] >= 0
        experts = torch.where(known, chosen, own)
        if layer not in routing.compared:  # not in a recomputation
            routing.differing[layer] = (experts[:, :, None] != own[:, None, :]).all(dim=-1).sum()
            routing.compared[layer] = known.sum() * own.shape[1]
        if routing.used is not None:
            routing.used.setdefault(layer, []).append(experts)
        return args[0].gather(-1, experts), experts


def routing_of(routes: Sequence[bytes], form: RouteFormat, ids: Tensor, lengths: Sequence[int] | None) -> Routing:
    """Return the experts of a micro-batch on its device.

    Args:
        routes: of each sequence, the experts of its first tokens.
        form: the format of `routes`.
        ids: [rows, longest] padded, or [1, tokens] packed.
        lengths: the lengths of packed sequences; None: padded.

    Raises:
        ValueError: for routes of another model.
    """
    spaces = [ids.shape[1]] * len(ids) if lengths is None else lengths
    chosen = np.full((form.layers, ids.numel(), form.experts), OWN, np.int16)
    start = 0
    for data, space in zip(routes, spaces, strict=True):
        rows = form.decode(data)
        if len(rows) > space:
            raise ValueError(f"a sequence of {space} tokens has the experts of {len(rows)}")
        chosen[:, start : start + len(rows)] = rows.transpose(1, 0, 2)
        start += space
    return Routing(to_device(chosen, ids.device))
