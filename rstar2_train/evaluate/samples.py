"""Finished samples of an evaluation, kept so that no death of the process makes one be asked twice.

A file belongs to one model under one group of settings (`address`); in it each sample is addressed by its problem's
tokens and answer and by its number. So a larger evaluation, with more benchmarks or samples, finds what a smaller one
has asked, and a problem that was changed is asked again. Appended as samples end, read when the command starts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rstar2_train.data.problems import Problem
from rstar2_train.rollout import store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.track.journal import Journal, read

FORMAT = 1
"""Version of the file's lines, and of what an address covers."""


def address(settings: Mapping[str, Any]) -> str:
    """A short name for the settings of an evaluation: other settings, other name. `settings`: as JSON would hold them.

    Everything belongs in it that changes what is sampled from a given prompt: model, sampling, tool, limits, seed.
    """
    text = json.dumps({"format": FORMAT, **settings}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def sample_address(prompt_id: str, prompt_ids: Sequence[int], gold: str, sample: int) -> str:
    """The name of one sample in its file. The id is part of it, since it seeds the sampling."""
    text = json.dumps([prompt_id, list(prompt_ids), gold, sample])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Samples:
    """The samples of one model under one group of settings. Use as a context manager; one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._journal = Journal(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()

    def add(self, trajectory: Trajectory) -> None:
        """Keep a sample that has ended, unless infrastructure lost it; on return a kill -9 cannot take it back."""
        if not trajectory.failed:
            name = sample_address(trajectory.prompt_id, trajectory.prompt_ids, trajectory.gold, trajectory.sample)
            self._journal.append({"sample": name, "trajectory": dataclasses.asdict(trajectory)})

    def finished(
        self, problems: Sequence[Problem], prompts: Mapping[str, Sequence[int]], *, samples: int
    ) -> dict[tuple[str, int], Trajectory]:
        """What is there of `samples` samples of each problem, by problem id and number.

        `prompts`: token ids by problem id. A problem's `slice` and `hard` are taken from `problems`: they may have
        been changed since. A line that a killed process left unfinished is no sample.
        """
        wanted = {
            sample_address(problem.id, prompts[problem.id], problem.answer, sample): problem
            for problem in problems
            for sample in range(samples)
        }
        found = {}
        for event, _ in read(self._path):
            problem = wanted.get(event["sample"]) if event is not None else None
            if event is not None and problem is not None:
                trajectory = store.from_row(event["trajectory"])
                trajectory.slice, trajectory.hard = problem.slice, problem.hard
                found[problem.id, trajectory.sample] = trajectory
        return found
