"""Finished samples of a measurement, kept so that no death of the process makes one be asked twice.

A file belongs to one model under one group of settings (`cache_key`); in it each sample is addressed by its problem's
tokens and answer and by its number. So a larger measurement, with more benchmarks or samples, finds what a smaller one
has asked, and a problem that was changed is asked again. Appended as samples end, read_entries when the command or the
stage starts; `sampling.py` asks what is missing."""

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
from rstar2_train.tracking.journal import Event, Journal, read_entries, read_event

FORMAT = 2
"""Version of the file's lines, and of what an address covers."""


def sampling_settings(spec: JobSpec, sampling: Sampling, *, seed_name: str) -> dict[str, Any]:
    """All of a job that changes what is sampled from a given prompt, but for the model: as JSON would hold it.

    `seed_name`: follows the job's seed in the seed of every request.
    """
    rollout = spec.rollout
    return {
        "seed": spec.seed,
        "seed_name": seed_name,
        **sampling.model_dump(by_alias=False),
        "tool": rollout.tool,
        "tool_response_tokens": rollout.tool_response_tokens,
        "max_calls_per_turn": rollout.max_calls_per_turn,
        "tool_limits": JudgeLimits.from_spec(spec.judge.limits).model_dump(by_alias=False),
    }


def cache_key(settings: Mapping[str, Any]) -> str:
    """A short name for a model and its settings: others, other name. `settings`: as JSON would hold them.

    Everything belongs in it that changes what is sampled from a given prompt: the model by content,
    `sampling_settings`.
    """
    text = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def sample_cache_key(prompt_id: str, prompt_ids: Sequence[int], gold: str, sample: int) -> str:
    """The name of one sample in its file. The id is part of it, since it seeds the sampling."""
    text = json.dumps([prompt_id, list(prompt_ids), gold, sample])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class SampleCache:
    """The samples of one model under one group of settings. Use as a context manager; one process at a time.

    Holds a small record of each sample, and where its trajectory lies in the file.
    """

    def __init__(self, path: Path, *, whole: bool = True) -> None:
        """`whole`: keep the trajectories too; else only how they ended, in a thousandth of the space."""
        self._path = path
        self._whole = whole
        self._at: dict[SampleKey, int] = {}
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
            sample_cache_key(problem.id, request.prompts[problem.id], problem.answer, sample): problem
            for problem, sample in request.pairs
        }
        results = {}
        for event, start, _ in read_entries(self._path):
            problem = problems.get(event["sample"]) if event is not None else None
            if event is not None and problem is not None:
                result = SampleResult(**event["scored"] | {"slice": problem.slice, "hard": problem.hard})
                results[problem.id, result.sample] = result
                self._at[problem.id, result.sample] = start
        return results

    def add(self, trajectory: Trajectory) -> SampleResult:
        """Keep a sample that has ended; on return a kill -9 cannot take it back. Returns its record.

        One that infrastructure lost is held until the end, but not kept: it is to be asked again. Raises OSError when
        the disk is full; what is in the file stays readable.
        """
        scored = SampleResult.of(trajectory)
        key = trajectory.prompt_id, trajectory.sample
        if not trajectory.failed:
            name = sample_cache_key(trajectory.prompt_id, trajectory.prompt_ids, trajectory.gold, trajectory.sample)
            event: Event = {"sample": name, "scored": dataclasses.asdict(scored)}
            if self._whole:
                event["trajectory"] = trajectory_store.to_row(trajectory)
            self._at[key] = self._journal.append(event)
        elif self._whole:
            self._lost[key] = trajectory
        return scored

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield the trajectories of all loaded and added samples, in problem order; one is in memory at a time."""
        order = {name: at for at, name in enumerate(self._problems)}
        for key in sorted(self._at | self._lost, key=lambda key: (order[key[0]], key[1])):
            if key in self._at:
                trajectory = trajectory_store.from_row(read_event(self._path, self._at[key])["trajectory"])
                problem = self._problems[key[0]]
                trajectory.slice, trajectory.hard = problem.slice, problem.hard
                yield trajectory
            else:
                yield self._lost[key]
