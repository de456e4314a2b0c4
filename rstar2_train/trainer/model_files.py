"""The safetensors files of a model folder, and their names for the parameters of the model of transformers.

A parameter may have another name in the files (GPT-NeoX: `embed_out.weight` for `lm_head.weight`), which the engines
and the exported folder keep. A mixture has one tensor per expert in the files, and one parameter for all. Old
files have tensors that no model reads, such as rotary frequencies.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rstar2_train.capacity.config_file import GENERATION_CONFIG, read_config
from rstar2_train.capacity.model_support import MIXTURES, UnsupportedModel, unsupported_mixture
from rstar2_train.capacity.weight_check import BUFFERS, find_weight_faults, is_expert
from rstar2_train.capacity.weight_files import companions
from rstar2_train.capacity.weight_headers import StoredTensor
from rstar2_train.trainer.sharding import tensor_shape


def copy_companions(source: Path, target: Path, stop_ids: Sequence[int] = (), *, dtype: str | None = None) -> None:
    """Copy all files of a model folder except its weights.

    Args:
        source: the model folder.
        target: an existing folder.
        stop_ids: tokens that end a turn, for the generation config: other programs stop at those; () leaves it
            unchanged.
        dtype: number format of the weights in the target, for config.json; None leaves it unchanged.
    """
    for path in companions(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
    if stop_ids:
        file = target / GENERATION_CONFIG
        config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**config, "eos_token_id": list(stop_ids)}, indent=2) + "\n", encoding="utf-8")
    if dtype is not None:
        stored = {name: value for name, value in read_config(source).items() if name != "torch_dtype"}
        text = json.dumps({**stored, "dtype": dtype}, indent=2) + "\n"
        (target / "config.json").write_text(text, encoding="utf-8")


def file_names(
    model: Any, parameters: Iterable[str], stored: Iterable[str], *, folder: Path
) -> dict[str, tuple[str, ...]]:
    """Return the names of the tensors in the files of a folder that each parameter has, in its order in memory.

    A parameter is the concatenation of its tensors: itself, or with grouped experts the gate and up projections of
    expert 0, those of expert 1, and so on.

    Args:
        model: the model of transformers, which defines other names, grouped experts, and tensors to skip.
        parameters: names of its parameters, tied ones once.
        stored: names of the tensors in the files.
        folder: for the message.

    Raises:
        UnsupportedModel: if a parameter has no tensor, or a tensor no parameter.
    """
    rename = _Renaming(model)
    places: dict[str, dict[tuple[int, int], str]] = {}
    for name in stored:
        parameter, place = rename(name)
        places.setdefault(parameter, {})[place] = name
    names = {parameter: tuple(tensors[place] for place in sorted(tensors)) for parameter, tensors in places.items()}
    parameters = dict.fromkeys(parameters)
    missing = sorted(parameters.keys() - names.keys()) + rename.gaps(places)
    tied = getattr(model, "_tied_weights_keys", None) or {}
    skipped = [*(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()), *BUFFERS]
    unknown = sorted(
        stored_name
        for name, stored_names in names.items()
        for stored_name in stored_names
        if name not in parameters
        and not (name in tied and model.config.tie_word_embeddings)
        and not any(re.search(pattern, name) for pattern in skipped)
    )
    if missing or unknown:
        raise UnsupportedModel(
            f"{folder}: the weights are not those of a {type(model).__name__}: missing {missing[:3]}, "
            f"unknown {unknown[:3]}: {_remedy(model, unknown, rename)}"
        )
    return {name: names[name] for name in parameters}


def _remedy(model: Any, unknown: Sequence[str], rename: _Renaming) -> str:
    """Return what to do about tensors that are no parameters. `unknown`: their names."""
    buffers = {name for name, _ in model.named_buffers()}
    if any(name in buffers for name in unknown):
        return "the class has them as buffers, which the trainer does not read: use another model"
    if any(map(rename.is_converted, unknown)):
        return "transformers computes parameters from them, in a way that the trainer does not: use another model"
    return "correct config.json, or download the folder again"


def checked_names(
    model: Any, folder: Path, parameters: Mapping[str, Tensor], tensors: Mapping[str, StoredTensor], *, written: bool
) -> dict[str, tuple[str, ...]]:
    """Return the tensors of each parameter, as `file_names`, if the files have the weights of the model as they are.

    Args:
        model: the model of transformers.
        folder: the model folder.
        parameters: those of the model, by name.
        tensors: those of the files.
        written: whether the job writes the weights in the format of config.json.

    Raises:
        UnsupportedModel: if the tensors are not those of the model, or the trainer would change them.
    """
    kind = model.config.model_type
    experts = next(filter(is_expert, parameters), None)
    if experts and kind not in MIXTURES:
        raise UnsupportedModel(unsupported_mixture(experts, kind))
    config = read_config(folder) | {"tie_word_embeddings": bool(getattr(model.config, "tie_word_embeddings", False))}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    if faults := list(find_weight_faults(folder, config, tensors, written=written, tied=tied)):
        raise UnsupportedModel(f"{folder}: {'; '.join(faults)}")
    names = file_names(model, parameters, tensors, folder=folder)
    for parameter, stored in names.items():
        shape = tensor_shape(parameters[parameter], len(stored))
        for name in stored:
            if tensors[name].shape != shape:
                raise UnsupportedModel(
                    f"{tensors[name].file}: {name} has shape {list(tensors[name].shape)}, but config.json requires "
                    f"{list(shape)}: correct config.json, or download the folder again"
                )
    return names


class _Renaming:
    """The parameter of a tensor in the files, and its place in it: expert and part of the expert."""

    def __init__(self, model: Any) -> None:
        self._renamings: list[Any] = []
        self._groups: list[tuple[Any, list[re.Pattern[str]]]] = []
        """Each conversion that groups experts, and the names of its parts with the number of the expert."""
        self._others: list[re.Pattern[str]] = []
        """Names of the tensors of conversions of other kinds."""
        try:
            from transformers.conversion_mapping import get_model_conversion_mapping
            from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, WeightRenaming
        except ImportError:  # before transformers 5.3: no other names
            return
        for entry in get_model_conversion_mapping(model):
            if isinstance(entry, WeightRenaming):
                self._renamings.append(entry)
            elif isinstance(entry, WeightConverter):
                parts = [re.compile(part.replace("*.", r"(\d+)\.")) for part in entry.source_patterns]
                if _groups_experts(entry, MergeModulelist, Concatenate):
                    self._groups.append((entry, parts))
                else:
                    self._others += parts

    def __call__(self, name: str) -> tuple[str, tuple[int, int]]:
        for renaming in self._renamings:
            name = renaming.rename_source_key(name)[0]
        for entry, parts in self._groups:
            for number, part in enumerate(parts):
                if match := part.search(name):
                    return entry.rename_source_key(name)[0], (int(match[1]), number)
        return name, (0, 0)

    def is_converted(self, name: str) -> bool:
        """Return whether transformers computes a parameter from a tensor, otherwise than by grouping experts."""
        return any(part.search(name) for part in self._others)

    def gaps(self, places: dict[str, dict[tuple[int, int], str]]) -> list[str]:
        """Return the first expert or part that each incomplete group lacks."""
        lacking = []
        for parameter, tensors in sorted(places.items()):
            experts, parts = (1 + max(place[axis] for place in tensors) for axis in (0, 1))
            absent = [place for place in itertools.product(range(experts), range(parts)) if place not in tensors]
            lacking += [f"{parameter}, part {part} of expert {expert}" for expert, part in absent[:1]]
        return lacking


def _groups_experts(entry: Any, merge: type, concatenate: type) -> bool:
    """Return whether a conversion stacks the experts, and joins the rows of their parts, if there are several."""
    kinds = [(type(operation), operation.dim) for operation in entry.operations if hasattr(operation, "dim")]
    expected = [(merge, 0), (concatenate, 1)][: 1 + (len(entry.source_patterns) > 1)]
    return len(kinds) == len(entry.operations) and kinds == expected
