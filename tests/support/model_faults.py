"""Faults that a trainer may have, one of each kind: the self-check must refuse each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rstar2_train.capacity.model_support import OutputLayer
from rstar2_train.trainer import attention, model

Patch = Callable[[Any, str, Any], None]
"""Replaces an attribute of a module, and restores it later."""


def _no_scale(patch: Patch) -> None:
    patch(model, "output_layer", lambda config: OutputLayer())


def _no_bias(patch: Patch) -> None:
    real = model.token_logprobs
    patch(model, "token_logprobs", lambda **arguments: real(**arguments | {"bias": None}))


def _scores(patch: Patch, field: str) -> None:
    real = attention.Scores
    fields = ("scaling", "window", "softcap", "sinks")
    patch(attention, "Scores", lambda *values: real(**dict(zip(fields, values, strict=True)) | {field: None}))


def _wrong_names(patch: Patch) -> None:
    real = model.checked_names

    def swapped(*arguments: Any, **options: Any) -> dict[str, tuple[str, ...]]:
        names = real(*arguments, **options)
        first, second = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1))
        return names | {first: names[second], second: names[first]}

    patch(model, "checked_names", swapped)


def _wrong_experts(patch: Patch) -> None:
    real = model.checked_names

    def rotated(*arguments: Any, **options: Any) -> dict[str, tuple[str, ...]]:
        names = real(*arguments, **options)
        return {name: tensors[2:] + tensors[:2] for name, tensors in names.items()}

    patch(model, "checked_names", rotated)


def leak(patch: Patch) -> None:
    def joined(lengths: Any, device: Any, *, kernel: bool) -> attention.Packing:
        return attention.Packing((sum(lengths),), sum(lengths), None)

    patch(attention, "packing_of", joined)


def _wrong_positions(patch: Patch) -> None:
    patch(attention, "positions_of", lambda lengths, device: torch.arange(sum(lengths))[None] // 2)


def _wrong_buffers(patch: Patch) -> None:
    real = model._fill_buffers

    def scaled(policy: Any, device: torch.device) -> None:
        real(policy, device)
        for buffer in policy.buffers():
            buffer.mul_(1.5)

    patch(model, "_fill_buffers", scaled)


FAULTS: dict[str, tuple[str, Callable[[Patch], None]]] = {
    "scale dropped (Granite)": ("Granite 3", _no_scale),
    "scale dropped (Cohere)": ("Cohere2", _no_scale),
    "cap of the logits dropped": ("Gemma 2", _no_scale),
    "bias dropped": ("Phi", _no_bias),
    "window ignored": ("Gemma 3", lambda patch: _scores(patch, "window")),
    "cap of the scores ignored": ("Gemma 2", lambda patch: _scores(patch, "softcap")),
    "sinks ignored": ("GPT-OSS", lambda patch: _scores(patch, "sinks")),
    "factor of the scores ignored": ("Granite 3", lambda patch: _scores(patch, "scaling")),
    "wrong names": ("Llama", _wrong_names),
    "wrong order of the experts": ("Qwen3-MoE", _wrong_experts),
    "packed rows leak": ("Qwen3", leak),
    "wrong positions": ("Qwen3", _wrong_positions),
    "wrong buffers": ("Llama 3", _wrong_buffers),
}
