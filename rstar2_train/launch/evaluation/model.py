"""The model of `rstar2 eval` and `rstar2 filter`: a folder to serve here, or a model that an endpoint serves already.

`one_stage_job.py` uses its identity for the cache key of the samples, its tokenizer, and its context length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.api.roles import RolloutSpec
from rstar2_train.evaluation.settings import endpoint_identity, folder_identity
from rstar2_train.inference.openai_client import ServedModel
from rstar2_train.launch import running_services
from rstar2_train.launch.adapter_model import whole_model
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.local.services import RunningServices
from rstar2_train.launch.model_folder import context_length, fetched_model, read_config
from rstar2_train.utils.local_path import local_path


@dataclass(frozen=True)
class ResolvedModel:
    """The model of a command."""

    name: str
    """Shown to the user: the folder, or the name at the endpoint."""
    folder: Path | None
    """Folder to serve; None: an endpoint serves it already."""
    tokenizer: Path
    context: int | None
    """Longest sequence in tokens; None: unknown."""
    identity: dict[str, Any]
    """Settings that identify the model."""
    root: str = ""
    """Source that the server of an endpoint loaded."""


def resolve_model(
    name: str,
    services: RunningServices,
    *,
    tokenizer: Path | None,
    rollout: RolloutSpec,
    base: Path | None,
    jobs: Path,
) -> ResolvedModel:
    """Return the model that `--model` and `--endpoint` name. Raises PreflightError.

    Args:
        name: a folder, or MANIFEST or MANIFEST/STAGE of a job in a bucket;
            with an endpoint, the name or folder of a served model, or empty if it serves only one.
        services: the running engine, if there is one.
        tokenizer: folder of the tokenizer; None: that of the model.
        rollout: arguments of the engine.
        base: base of an adapter; None: the one that its config names.
        jobs: folder of the state of all jobs, which keeps a merged model.
    """
    if services.engine:
        if base is not None:
            raise PreflightError("--base has no effect with --endpoint. Remove one of them.")
        names = [name, str(_expanded(name).resolve())] if name else []
        served = asyncio.run(
            running_services.find_model(
                services.engine,
                token=services.engine_token,
                names=names,
                accept_only=not name,
                advice="pass one of these names with --model",
            )
        )
        identity = endpoint_identity(served.name, services.engine)
        own_tokenizer = _served_tokenizer(tokenizer, served)
        return ResolvedModel(served.name, None, own_tokenizer, served.max_model_len, identity, served.root)
    named = fetched_model(name, jobs=jobs) or _expanded(name).resolve()
    folder = whole_model(named, base=base, jobs=jobs)
    config = read_config(folder, needs_tokenizer=False)
    context = _max_model_len(rollout.engine_args) or context_length(config)
    return ResolvedModel(name, folder, tokenizer or folder, context, folder_identity(folder, rollout))


def _expanded(name: str) -> Path:
    try:
        return local_path(name)
    except ValueError as error:
        raise PreflightError(str(error)) from error


def _served_tokenizer(given: Path | None, served: ServedModel) -> Path:
    """Return the tokenizer's folder: `given`, or the folder that the server has loaded if it is on this machine."""
    folder = given or Path(served.root)
    if not (folder / "tokenizer.json").is_file():
        raise PreflightError(
            f"{folder} has no tokenizer.json on this machine: pass --tokenizer FOLDER with a copy of the tokenizer "
            f"of {served.name!r}"
        )
    return folder


def _max_model_len(engine_args: Mapping[str, Any]) -> int | None:
    for name, value in engine_args.items():
        if name.lstrip("-").replace("_", "-") == "max-model-len" and str(value).isdecimal():
            return int(value)
    return None
