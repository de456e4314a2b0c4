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
from rstar2_train.utils.text import one_line

MOST_CHARACTERS = 300
"""Characters of an error of transformers in a message: the reason may be on its second line, or its third."""


def read_model_config(model_dir: Path) -> Any:
    """Return the config of transformers for a model folder. Raises UnsupportedModel."""
    try:
        kind = read_config(model_dir).get("model_type")
    except InvalidConfig as error:
        raise UnsupportedModel(str(error)) from error
    with refused(
        f"{model_dir / CONFIG}: transformers {version} has no config of model_type {kind!r} with these fields",
        remedy="correct the field, or use another model",
    ):
        return AutoConfig.from_pretrained(model_dir, local_files_only=True)


def build_on_meta(config: Any, *, dtype: torch.dtype, attention: str) -> Any:
    """Return the causal language model of a config without memory. Raises UnsupportedModel.

    `attention`: the name of its attention function.
    """
    action = f"a model of {type(config).__name__} cannot be built"
    with refused(action), torch.device("meta"):
        try:
            return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        except KeyError as error:
            if error.args != (attention,):
                raise
            raise UnsupportedModel(
                f"{action}: its class has a fixed set of attention functions, without that of the trainer: use another "
                "model"
            ) from error


@contextmanager
def refused(action: str, *, remedy: str = "use another model") -> Iterator[None]:
    """Turn any error of a class of transformers into UnsupportedModel. `action`: the first part of the message."""
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        text = one_line(error, most=MOST_CHARACTERS).rstrip(".:")
        raise UnsupportedModel(f"{action}: {type(error).__name__}: {text}: {remedy}") from error
