"""An adapter with its base, in place of a model folder: `rstar2 serve`, `chat`, `eval`, `filter` and `export`.

Engines, tokenizer and measurements read a whole model folder. So the adapter is merged once into a folder of the state
of all jobs, in float32 and rounded once, as the trainer does at the end of a stage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from rstar2_train.api.contracts import StageFailed
from rstar2_train.capacity.config_file import TOKENIZER
from rstar2_train.capacity.weight_files import INDEX, SINGLE, companions
from rstar2_train.capacity.weight_headers import InvalidWeights, read_tensors
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.model_folder import ModelNotFound
from rstar2_train.rollout.template_file import stored_template
from rstar2_train.utils.files import file_sha256
from rstar2_train.weights.adapter_check import check_base, inspect_adapter
from rstar2_train.weights.adapter_folder import ADAPTER, CONFIG, adapter_files, folder_digest
from rstar2_train.weights.shard_file import ShardFileInvalid

CACHE = "_merged"
"""Folder of the merged models in the folder of all jobs. No job can have this name."""


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter without the weights of its base; other programs add its config.json."""
    return (folder / CONFIG).is_file() and not any((folder / name).is_file() for name in (SINGLE, INDEX))


def find_adapter(folder: Path) -> Path | None:
    """Return the folder of the adapter of a model: itself, or that in a merged model folder; None: it has none."""
    if is_adapter(folder):
        return folder
    return folder / ADAPTER if (folder / ADAPTER / CONFIG).is_file() else None


def base_of(adapter: Path, base: Path | None) -> Path:
    """Return the model folder of an adapter's base: `base`, or the one that its config names.

    Raises ModelNotFound if it is not on this machine, PreflightError for an unusable adapter.
    """
    try:
        named = inspect_adapter(adapter).base_folder
    except ShardFileInvalid as error:
        raise PreflightError(str(error)) from error
    if base is None and not named:
        raise ModelNotFound(f"{adapter} names no base: pass the folder of its base with --base FOLDER")
    folder = base or Path(named)
    if not _has_config(folder):
        raise ModelNotFound(
            f"{str(folder)[:200]} is no model folder of this machine: pass the base of the adapter {adapter} with "
            "--base FOLDER"
        )
    if kind := _other_text(adapter, folder):
        raise PreflightError(
            f"{adapter} has another {kind} than its base {folder}, whose files are used: if the adapter was trained "
            "with it, copy it into the folder of the base. Then remove it from the adapter"
        )
    return folder.resolve()


def _has_config(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except (OSError, ValueError):  # no name of a file: too long, or with a NUL character
        return False


def _other_text(adapter: Path, base: Path) -> str:
    """Return what an adapter has, and its base not the same: tokenizer or chat template; empty: nothing."""
    try:
        template = stored_template(adapter)
        if template and template != stored_template(base):
            return "chat template"
    except ValueError as error:
        raise PreflightError(f"{adapter} or {base}: the chat template cannot be read: {error}") from error
    file = adapter / TOKENIZER
    return "" if not file.is_file() or _tokenizer(file) == _tokenizer(base / TOKENIZER) else TOKENIZER


def _tokenizer(file: Path) -> str:
    """Return a tokenizer in the form of one version, without the limits of a training."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library's only class
        raise PreflightError(f"{file} cannot be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return str(tokenizer.to_str())


def check_whole(folder: Path, base: Path | None) -> None:
    """Raise PreflightError if a base was named for a whole model, or an adapter is among its files."""
    if base is not None:
        raise PreflightError(f"--base has no effect: {folder} is not an adapter. Remove it.")
    if (folder / CONFIG).is_file():
        raise PreflightError(
            f"{folder} has the weights of a model and {CONFIG}: move adapter_* to a folder of its own, and pass the "
            "folder that you mean"
        )


def merge_into(adapter: Path, base: Path | None, target: Path) -> None:
    """Write the whole model of an adapter; `base`: as of `base_of`. Raises PreflightError."""
    from rstar2_train.trainer.merge import merge

    try:
        merge(adapter, base_of(adapter, base), target)
    except (ShardFileInvalid, FileNotFoundError, StageFailed) as error:
        raise PreflightError(str(error)) from error


def whole_model(folder: Path, *, base: Path | None, jobs: Path, notify: Callable[[str], None] = lambda _: None) -> Path:
    """Return the model folder to serve: `folder`, or that of its adapter merged with its base.

    Args:
        folder: a model folder, or an adapter.
        base: base of the adapter; None: the one that its config names.
        jobs: folder of the state of all jobs, which keeps the merged model for the next call.
        notify: called with a message before the merged model is written.

    Raises:
        PreflightError: without a base, for a base of another adapter, and for an adapter of another kind.
    """
    if not is_adapter(folder):
        check_whole(folder, base)
        return folder
    model_dir = base_of(folder, base)
    try:
        identity = inspect_adapter(folder).identity
        files = [*adapter_files(folder), *companions(model_dir)]
        parts = [identity.base or folder_digest(model_dir), *((path.name, file_sha256(path)) for path in files)]
        target = (jobs / CACHE / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]).resolve()
        if not _is_whole(target):
            notify(f"Merging {folder} with {model_dir} into {target} ...")
            merge_into(folder, model_dir, target)
        elif base is not None:
            check_base(folder, identity, model_dir)
    except ShardFileInvalid as error:
        raise PreflightError(str(error)) from error
    return target


def _is_whole(folder: Path) -> bool:
    """Return whether a merged model has all its files, and none is shorter than its header states."""
    if not (folder / "config.json").is_file():
        return False
    try:
        read_tensors(folder)
    except InvalidWeights:
        return False
    return True
