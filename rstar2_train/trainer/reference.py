"""The frozen second policy, sharded as the trained one: the teacher, or the reference of grpo.referenceKl."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rstar2_train.capacity.frozen_model import mismatch
from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer.device import ComputeDevice
from rstar2_train.trainer.model import Policy, load_policy
from rstar2_train.trainer.types import TrainConfig


def load_reference(
    folder: Path, model_dir: Path, *, compute: ComputeDevice, layout: Layout, config: TrainConfig
) -> Policy:
    """Load the reference. Collective. Its layers are neither compiled nor checkpointed: it has no backward pass.

    Raises:
        UnsupportedModel: for another architecture, shape or tokenizer than that of `model_dir`.
    """
    if error := mismatch(folder, model_dir):
        raise UnsupportedModel(error)
    return load_policy(
        folder,
        compute=compute,
        chunk=config.logprob_chunk_tokens,
        layout=replace(layout, unchecked=10**6, reduce_once=False),
        packed=config.packed,
        longest=config.longest_sequence,
        trained=False,
    )
