"""The file of finished samples of a measurement, so that no sample is generated twice after a restart.

A file belongs to one model with one set of settings (`cache_key`). The key of a sample covers the problem's prompt
tokens, its answer and the sample number (`sample_cache_key`). Thus a larger measurement, with more benchmarks or
samples, reuses the samples of a smaller one, and a changed problem is sampled again. `sampling.py` generates the
missing samples.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rstar2_train.api.job import JobSpec
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.stages import Sampling
from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tools.sandbox_program import read_sources
from rstar2_train.tools.toolset import load_tool
from rstar2_train.tracking.journal import Event, Journal, read_entries, read_event

FORMAT = 2
"""Version of the lines of the file and of the keys."""


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
        settings["agent"] = spec.agent.model_dump(by_alias=False, exclude={"seconds", "episodes"})
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


def sample_cache_key(prompt_id: str, prompt_ids: Sequence[int], gold: str, sample: int) -> str:
    """Return the key of one sample in its file. It covers the problem id, because the id seeds the sampling."""
    text = json.dumps([prompt_id, list(prompt_ids), gold, sample])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _gold(problem: Problem) -> str:
    """Return everything in a row that decides its reward: the answer, and the data of its checker."""
    extras = (problem.reward, problem.files, problem.data)
    return json.dumps([problem.answer, *extras]) if any(extras) else problem.answer


class SampleCache:
    """The samples of one model with one set of settings. Use as a context manager, in one process at a time.

    In memory, it has only the file offset of each sample.
    """

    def __init__(self, path: Path, *, with_trajectories: bool = True) -> None:
        """`with_trajectories`: save the trajectories too; otherwise only the results, in a thousandth of the space."""
        self._path = path
        self._with_trajectories = with_trajectories
        self._offsets: dict[SampleKey, int] = {}
        self._lost: dict[SampleKey, Trajectory] = {}
        self._problems: dict[str, Problem] = {}

    def __enter__(self) -> Self:
        self._journal = Journal(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()

    def load(self, request: SampleRequest) -> dict[SampleKey, SampleResult]:
        """Return the saved samples of the request.

        `slice` and `hard` come from the request's problems, because the data file may have changed since. A line that a
        killed process left unfinished is skipped.
        """
        self._problems = {problem.id: problem for problem in request.problems}
        problems = {
            sample_cache_key(problem.id, request.prompts[problem.id], _gold(problem), sample): problem
            for problem, sample in request.pairs
        }
        results = {}
        for event, start, _ in read_entries(self._path):
            problem = problems.get(event["sample"]) if event is not None else None
            if event is not None and problem is not None:
                result = SampleResult(**event["scored"] | {"slice": problem.slice, "hard": problem.hard})
                results[problem.id, result.sample] = result
                self._offsets[problem.id, result.sample] = start
        return results

    def add(self, trajectory: Trajectory) -> SampleResult:
        """Save a finished sample, which then survives the death of the process, and return its result.

        A lost sample is not saved, so that it is sampled again; it only stays in memory. Raises OSError when the disk
        is full; the saved samples stay readable.
        """
        result = SampleResult.from_trajectory(trajectory)
        key = trajectory.prompt_id, trajectory.sample
        if not trajectory.failed:
            problem = self._problems.get(trajectory.prompt_id)
            gold = trajectory.gold if problem is None else _gold(problem)
            name = sample_cache_key(trajectory.prompt_id, trajectory.prompt_ids, gold, trajectory.sample)
            event: Event = {"sample": name, "scored": dataclasses.asdict(result)}
            if self._with_trajectories:
                event["trajectory"] = trajectory_store.to_row(trajectory)
            self._offsets[key] = self._journal.append(event)
        elif self._with_trajectories:
            self._lost[key] = trajectory
        return result

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield the trajectories of all loaded and added samples, in problem order; one is in memory at a time."""
        order = {problem_id: index for index, problem_id in enumerate(self._problems)}
        for key in sorted(self._offsets | self._lost, key=lambda key: (order[key[0]], key[1])):
            if key in self._offsets:
                trajectory = trajectory_store.from_row(read_event(self._path, self._offsets[key])["trajectory"])
                problem = self._problems[key[0]]
                trajectory.slice, trajectory.hard = problem.slice, problem.hard
                yield trajectory
            else:
                yield self._lost[key]
