"""The file of finished samples of a measurement, so that no sample is generated twice after a restart.

A file belongs to one model with one set of settings (`settings.py`). The key of a sample covers the problem's prompt
tokens, its answer and the sample number (`sample_cache_key`). Thus a larger measurement, with more benchmarks or
samples, reuses the samples of a smaller one, and a changed problem is sampled again. `sampling.py` generates the
missing samples.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from rstar2_train.data.problems import Problem
from rstar2_train.evaluation.sample_result import SampleResult
from rstar2_train.evaluation.sampling import SampleKey, SampleRequest
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.journal import Event, Journal, read_entries

_FIELDS = {field.name for field in dataclasses.fields(SampleResult)}


def sample_cache_key(prompt_id: str, prompt_ids: Sequence[int], gold: str, sample: int) -> str:
    """Return the key of one sample in its file. It covers the problem id, because the id seeds the sampling."""
    text = json.dumps([prompt_id, list(prompt_ids), gold, sample])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _gold(problem: Problem) -> str:
    """Return everything in a row that decides its reward: the answer, and the data of its checker."""
    extras = (problem.reward, problem.files, problem.data)
    return json.dumps([problem.answer, *extras]) if any(extras) else problem.answer


class Place(NamedTuple):
    """The place of a trajectory in its file."""

    offset: int
    size: int
    checksum: int
    """CRC-32 of its bytes: a power failure may lose them although their result is saved."""


def trajectory_file(path: Path) -> Path:
    """Return the file with the trajectories of a file of samples. Pure."""
    return path.with_suffix(".trajectories")


class SampleCache:
    """The samples of one model with one set of settings. Use as a context manager, in one process at a time.

    The results are lines of JSON. The trajectories are compressed in a second file, so that a restart reads results
    only. In memory, it has only the place of each trajectory.
    """

    def __init__(self, path: Path, *, with_trajectories: bool = True) -> None:
        """`with_trajectories`: save the trajectories too; otherwise only the results, in a thousandth of the space."""
        self._path = path
        self._with_trajectories = with_trajectories
        self._places: dict[SampleKey, Place] = {}
        self._lost: dict[SampleKey, Trajectory] = {}
        self._problems: dict[str, Problem] = {}

    def __enter__(self) -> Self:
        self._journal = Journal(self._path)
        self._trajectories = os.open(trajectory_file(self._path), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()
        os.close(self._trajectories)

    def load(self, request: SampleRequest) -> dict[SampleKey, SampleResult]:
        """Return the saved samples of the request.

        `slice` and `hard` come from the request's problems, because the data file may have changed since. A line that a
        killed process left unfinished is skipped, one of another version with other fields, and one whose trajectory is
        needed but not there: not saved, or lost in a power failure.
        """
        self._problems = {problem.id: problem for problem in request.problems}
        if self._with_trajectories:
            trajectory_store.to_table(())  # the first table imports pandas for a second, which no loop should wait for
        problems = {
            sample_cache_key(problem.id, request.prompts[problem.id], _gold(problem), sample): problem
            for problem, sample in request.pairs
        }
        results = {}
        for event, _ in read_entries(self._path):
            problem = problems.get(event["sample"]) if event is not None else None
            if event is None or problem is None or not event["scored"].keys() <= _FIELDS:
                continue
            result = SampleResult(**event["scored"] | {"slice": problem.slice, "hard": problem.hard})
            key = problem.id, result.sample
            if self._with_trajectories:
                saved = event.get("place", ())
                if len(saved) != len(Place._fields) or not self._has(Place(*saved)):
                    continue
                self._places[key] = Place(*saved)
            results[key] = result
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
                event["place"] = self._places[key] = self._append(trajectory_store.to_bytes(trajectory))
            self._journal.append(event)
        elif self._with_trajectories:
            self._lost[key] = trajectory
        return result

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield the trajectories of all loaded and added samples, in problem order; one is in memory at a time."""
        order = {problem_id: index for index, problem_id in enumerate(self._problems)}
        for key in sorted({*self._places, *self._lost}, key=lambda key: (order[key[0]], key[1])):
            if place := self._places.get(key):
                trajectory = trajectory_store.from_bytes(os.pread(self._trajectories, place.size, place.offset))
                problem = self._problems[key[0]]
                trajectory.slice, trajectory.hard = problem.slice, problem.hard
                yield trajectory
            else:
                yield self._lost[key]

    def _has(self, place: Place) -> bool:
        """Return whether the file has the whole trajectory of a place, without columns of another version."""
        data = os.pread(self._trajectories, place.size, place.offset)
        is_whole = len(data) == place.size and zlib.crc32(data) == place.checksum
        return is_whole and trajectory_store.has_known_columns(data)

    def _append(self, data: bytes) -> Place:
        """Append a trajectory. The results refer to it only when it is complete."""
        written = os.write(self._trajectories, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"wrote only {written} of {len(data)} bytes of a trajectory")
        return Place(os.lseek(self._trajectories, 0, os.SEEK_CUR) - written, written, zlib.crc32(data))
