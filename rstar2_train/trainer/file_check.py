"""Compares the files of a model folder with the class of its config.json, without reading the tensors."""

from __future__ import annotations

from pathlib import Path

import torch

from rstar2_train.capacity.weight_headers import read_tensors
from rstar2_train.trainer.model_class import build_on_meta, read_model_config
from rstar2_train.trainer.model_files import checked_names


def check_model_files(model_dir: Path, *, written: bool) -> None:
    """Raise UnsupportedModel if the trainer would not load a model folder, or not compute with its weights as they are.

    `written`: whether the job writes the weights in the format of config.json.
    """
    model = build_on_meta(read_model_config(model_dir), dtype=torch.float32, attention="eager")
    model.tie_weights()
    checked_names(model, model_dir, dict(model.named_parameters()), read_tensors(model_dir), written=written)
