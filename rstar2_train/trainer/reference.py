"""The reference policy, sharded as the trained one and frozen: the teacher, or that of grpo.referenceKl."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.capacity.reference_model import reference_error
from rstar2_train.trainer import self_check
from rstar2_train.trainer.device import ComputeDevice
from rstar2_train.trainer.model import Policy, load_policy
from rstar2_train.trainer.types import TrainConfig


def load_reference(
    folder: Path, model_dir: Path, *, compute: ComputeDevice, layout: Layout, config: TrainConfig
) -> Policy:
    """Load the reference. Collective. Its layers are neither compiled nor checkpointed: it has no backward pass.

    It may have another architecture and shape than the model of `model_dir`, and is checked as the model is.

    Raises:
        UnsupportedModel: for another tokenizer than that of `model_dir`, or a model that is not computed exactly.
    """
    if error := reference_error(folder, model_dir, packed=config.packed, longest=config.longest_sequence):
        raise UnsupportedModel(error)
    self_check.check_family(folder, packed=config.packed)
    reference = load_policy(
        folder,
        compute=compute,
        chunk=config.logprob_chunk_tokens,
        layout=replace(layout, unchecked=10**6, reduce_once=False),
        packed=config.packed,
        longest=config.longest_sequence,
        trained=False,
    )
    self_check.check_weights(reference, compute, packed=config.packed)
    return reference
