"""Builds the class of a model of transformers. Any error of its constructors is a refusal that names the class."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import __version__ as version

from rstar2_train.capacity.config_file import CONFIG, InvalidConfig, read_config
from rstar2_train.capacity.model_support import UnsupportedModel


def read_model_config(model_dir: Path) -> Any:
    """Return the config of transformers for a model folder. Raises UnsupportedModel."""
    try:
        kind = read_config(model_dir).get("model_type")
    except InvalidConfig as error:
        raise UnsupportedModel(str(error)) from error
    with refused(
        f"{model_dir / CONFIG}: transformers {version} has no config of model_type {kind!r} with these fields"
    ):
        return AutoConfig.from_pretrained(model_dir, local_files_only=True)


def build_on_meta(config: Any, *, dtype: torch.dtype, attention: str) -> Any:
    """Return the causal language model of a config without memory. Raises UnsupportedModel.

    `attention`: the name of its attention function.
    """
    with refused(f"a model of {type(config).__name__} cannot be built"), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


@contextmanager
def refused(action: str) -> Iterator[None]:
    """Turn any error of a class of transformers into UnsupportedModel. `action`: the first part of the message."""
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise UnsupportedModel(f"{action}: {type(error).__name__}: {text}: use another model") from error
