"""Writes the adapter or the whole model that the user named for other programs: `rstar2 export`.

A stage with LoRA ends with a merged model folder, and with its adapter inside. This module copies the one or the other,
or merges an adapter that is alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.launch.adapter_model import base_of, check_whole, find_adapter, is_adapter, merge_into
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.serving.model import find_folder
from rstar2_train.trainer import checkpoint
from rstar2_train.weights.adapter_check import check_base, check_layers, inspect_adapter
from rstar2_train.weights.adapter_folder import ADAPTER, BASE_FIELD, CONFIG, adapter_files
from rstar2_train.weights.shard_file import ShardFileInvalid


def export_adapter(model: str, target: Path, *, jobs: Path, base: Path | None, base_name: str | None) -> None:
    """Write the files of the adapter of a model.

    Args:
        model: as of `find_folder`.
        target: the folder to create.
        jobs: folder of the state of all jobs.
        base: base of the adapter, whose path the config gets; None: the one that its config names.
        base_name: name of the base in the config; None: the path of its folder.

    Raises:
        PreflightError: if the model has no adapter, or `target` exists.
    """
    folder = find_folder(model, jobs=jobs)
    adapter = find_adapter(folder)
    if adapter is None:
        check_whole(folder, None)
        raise PreflightError(f"{folder} has no adapter: it was trained as a whole. Pass --merge to copy the model.")
    if base is not None and base_name is not None:
        raise PreflightError("--base has no effect with --base-name. Remove one of both.")
    try:
        form = inspect_adapter(adapter)
        named = base_name or str(base_of(adapter, base))
        if base is not None:
            check_layers(adapter, form, base)
            check_base(adapter, form.identity, base)
    except ShardFileInvalid as error:
        raise PreflightError(str(error)) from error
    config = json.loads((adapter / CONFIG).read_text(encoding="utf-8"))
    config[BASE_FIELD] = named
    with _new_folder(target) as new:
        for file in adapter_files(adapter):
            shutil.copyfile(file, new / file.name)
        (new / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def export_model(model: str, target: Path, *, jobs: Path, base: Path | None) -> None:
    """Write the whole model that the user named; arguments and errors as of `export_adapter`."""
    folder = find_folder(model, jobs=jobs)
    if is_adapter(folder):
        _check_absent(target)
        merge_into(folder, base, target)
        return
    check_whole(folder, base)
    with _new_folder(target) as new:
        shutil.copytree(folder, new, ignore=shutil.ignore_patterns(ADAPTER), dirs_exist_ok=True)


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes `target` when the block succeeds. Raises PreflightError if `target` exists."""
    _check_absent(target)
    try:
        with checkpoint.write_folder(target, durable=True) as folder:
            yield folder
    except StageFailed as error:  # the disk is full
        raise PreflightError(str(error)) from error


def _check_absent(target: Path) -> None:
    if target.exists():
        raise PreflightError(f"{target} exists already. Pass a folder that does not exist.")
