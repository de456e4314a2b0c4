"""The settings that determine the samples of a measurement, and the file of its samples that is named by them.

A stage and `rstar2 eval` or `filter` compute the same settings, so they find the same samples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rstar2_train.api.job import JobSpec
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import RolloutSpec
from rstar2_train.api.stages import Sampling
from rstar2_train.api.state_dir import StageState
from rstar2_train.evaluation.model_fingerprint import fingerprint
from rstar2_train.tools.sandbox_program import read_sources
from rstar2_train.tools.toolset import load_tool

FORMAT = 3
"""Version of the lines of a file of samples and of its keys."""


def folder_identity(model: Path, rollout: RolloutSpec) -> dict[str, Any]:
    """Return the settings that identify a model which engines of the job serve. Raises ModelIncomplete."""
    return {"model": fingerprint(model), "engine_args": dict(rollout.engine_args)}


def endpoint_identity(name: str, url: str) -> dict[str, Any]:
    """Return the settings that identify a model which an engine of another project serves. Pure."""
    return {"model": name, "endpoint": url}


def sampling_settings(spec: JobSpec, sampling: Sampling, *, seed_name: str) -> dict[str, Any]:
    """Return all settings of a job, except the model, that affect the samples of a prompt, as JSON values.

    `seed_name`: second part of the seed of every request, after the job's seed.
    """
    rollout = spec.rollout
    return {
        "seed": spec.seed,
        "seed_name": seed_name,
        **sampling.model_dump(by_alias=False),
        "tool": rollout.tool,
        **_task_settings(spec),
        "tool_response_tokens": rollout.tool_response_tokens,
        "max_calls_per_turn": rollout.max_calls_per_turn,
        "tool_limits": JudgeLimits.from_spec(spec.judge.limits).model_dump(by_alias=False),
    }


def _task_settings(spec: JobSpec) -> dict[str, Any]:
    """Return the settings of a job with its own tools or rewards: the content of the users' files, not their paths."""
    settings: dict[str, Any] = {}
    if spec.tools:
        settings["tools"] = [tool.model_dump(by_alias=False, exclude={"source"}) for tool in spec.tools]
        settings["tool_programs"] = [load_tool(tool).program for tool in spec.tools if not tool.server]
    if spec.mcp_servers:
        settings["mcp_servers"] = [server.model_dump(by_alias=False) for server in spec.mcp_servers]
    if spec.environments:
        settings["environments"] = [environment.model_dump(by_alias=False) for environment in spec.environments]
    if spec.agent:
        settings["agent"] = spec.agent.model_dump(
            by_alias=False, exclude={"timeout_seconds", "max_concurrent_episodes"}
        )
    if spec.rewards:
        settings["rewards"] = [reward.model_dump(by_alias=False, exclude={"source"}) for reward in spec.rewards]
        settings["checkers"] = [read_sources(Path(reward.source))[1] for reward in spec.rewards if reward.source]
    return settings


def cache_key(settings: Mapping[str, Any]) -> str:
    """Return the cache key of a (model, settings) pair.

    `settings`: JSON values of everything that affects the samples of a prompt: the model's fingerprint and
    `sampling_settings`.
    """
    text = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def sample_file(folder: StageState, settings: Mapping[str, Any]) -> Path:
    """Return the file of a stage's finished samples with these settings. Pure."""
    return folder.samples / f"{cache_key(settings)}.jsonl"
