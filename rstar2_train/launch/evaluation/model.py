"""Which model is asked, and where: a folder to be served here, or what an endpoint serves already.

For `plan.py`: the model's identity for the samples' address, its tokenizer, and the longest sequence that it takes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.evaluation.model_fingerprint import ModelIncomplete, fingerprint
from rstar2_train.inference.client import EngineRejected, EngineUnavailable
from rstar2_train.inference.openai_client import ServedModel, served_models
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError


@dataclass(frozen=True)
class ResolvedModel:
    """The model of a command."""

    name: str
    """For people: the folder, or the name at the endpoint."""
    folder: Path | None
    """What to serve; None: it is served already."""
    tokenizer: Path
    context: int | None
    """Tokens of the longest sequence it takes; None: not known."""
    identity: dict[str, Any]
    """What tells it from other models in the samples' address."""


def find_model(
    name: str, *, endpoint: str, engine_token: str, tokenizer: Path | None, engine_args: Mapping[str, Any]
) -> ResolvedModel:
    """The model that `--model` and `--endpoint` mean. Raises PreflightError with what is wrong.

    `name`: a folder; with an endpoint, the name or root of what is served there, or empty where that is one model.
    """
    if endpoint:
        served = _served(name, endpoint=endpoint, token=engine_token)
        identity: dict[str, Any] = {"model": served.name, "root": served.root, "endpoint": endpoint}
        return ResolvedModel(served.name, None, _tokenizer(tokenizer, served), served.max_model_len, identity)
    folder = Path(name).expanduser().resolve()
    identity = {"model": _content(folder), "engine_args": dict(engine_args)}
    return ResolvedModel(name, folder, tokenizer or folder, _context(folder, engine_args), identity)


def load_protocol(folder: Path, base: AgenticRLJob) -> ChatFormat:
    """The tool protocol of the job, on the tokenizer in `folder`. Raises PreflightError."""
    try:
        return ChatFormat.load(folder, base.spec.model, tool=base.spec.rollout.tool)
    except ChatFormatError as error:
        raise PreflightError(str(error)) from error


def _served(name: str, *, endpoint: str, token: str) -> ServedModel:
    """The model at the endpoint. Raises PreflightError when nobody answers or it is not there."""
    try:
        models = asyncio.run(served_models(endpoint, token=token))
    except (EngineUnavailable, EngineRejected) as error:
        raise PreflightError(f"--endpoint {endpoint}: {error}") from error
    names = [one.name for one in models]
    if not name and len(models) == 1:
        return models[0]
    roots = {name, str(Path(name).expanduser().resolve())} if name else set()
    for one in models:
        if one.name == name or one.root in roots:
            return one
    raise PreflightError(f"--endpoint {endpoint} serves {', '.join(names)}, not {name!r}: give --model NAME")


def _tokenizer(given: Path | None, served: ServedModel) -> Path:
    """Folder of the served model's tokenizer: given, or where the server has it, when that is on this machine."""
    folder = given or Path(served.root)
    if not (folder / "tokenizer.json").is_file():
        raise PreflightError(
            f"{folder} has no tokenizer.json here: give --tokenizer FOLDER, a copy of the tokenizer of {served.name!r}"
        )
    return folder


def _content(folder: Path) -> str:
    if not folder.is_dir():
        raise PreflightError(f"--model {folder}: no such folder; a model of a hub is fetched first, `hf download`")
    try:
        return fingerprint(folder)
    except ModelIncomplete as error:
        raise PreflightError(str(error)) from error


def _context(folder: Path, engine_args: Mapping[str, Any]) -> int | None:
    """Tokens of the longest sequence: what the job's engines are told, else what the model's config says."""
    for name, value in engine_args.items():
        if name.lstrip("-").replace("_", "-") == "max-model-len" and str(value).isdecimal():
            return int(value)
    longest = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    return longest if isinstance(longest, int) else None
