"""The reference policy of grpo.referenceKl: a frozen second policy, sharded as the trained one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_shape import shape_of
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer.device import ComputeDevice
from rstar2_train.trainer.model import Policy, load_policy
from rstar2_train.trainer.types import TrainConfig
from rstar2_train.weights.model_config import model_config

TOKENIZER = "tokenizer.json"


def load_reference(
    folder: Path, model_dir: Path, *, compute: ComputeDevice, layout: Layout, config: TrainConfig
) -> Policy:
    """Load the reference. Collective. Its layers are neither compiled nor checkpointed: it has no backward pass.

    Raises:
        UnsupportedModel: for another architecture, shape or tokenizer than that of `model_dir`.
    """
    if difference := _difference(folder, model_dir):
        raise UnsupportedModel(
            f"{folder}: cannot be the reference of {model_dir}: {difference}. The KL term compares the probabilities "
            "of the same tokens, and the plan counts a copy of the trained model: set grpo.referenceKl.source to one"
        )
    return load_policy(
        folder,
        compute=compute,
        chunk=config.logprob_chunk_tokens,
        layout=replace(layout, unchecked=10**6, reduce_once=False),
        packed=config.packed,
        longest=config.longest_sequence,
        trained=False,
    )


def _difference(folder: Path, model_dir: Path) -> str:
    """Return the difference of two model folders that excludes one as the reference of the other; empty: none."""
    try:
        shapes = [shape_of(model_config(path), name="") for path in (folder, model_dir)]
    except ValueError as error:
        return f"their shapes cannot be compared: {error}"
    if shapes[0] != shapes[1]:
        return f"its shape is {shapes[0]}, that of the model {shapes[1]}"
    files = [path / TOKENIZER for path in (folder, model_dir)]
    if all(file.is_file() for file in files) and files[0].read_bytes() != files[1].read_bytes():
        return f"the files {TOKENIZER} differ"
    return ""
