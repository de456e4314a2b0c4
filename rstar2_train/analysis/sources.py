"""Finds the trajectory files of a job, and selects trajectories for the viewer and the entropy study.

The first step of `rstar2 analyse`. The selection is pure and depends on names only, so that the same files give the
same pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.rewards.verdict import EXCLUDED
from rstar2_train.rollout import trajectory_store

Set = Literal["training", "filter", "evaluation"]
SETS: dict[str, Set] = {"GRPO": "training", "Filter": "filter"}


class AnalysisError(Exception):
    """The analysis cannot run. The message names the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """One file of trajectories."""

    path: Path
    stage: str
    set: Set
    """training: rollouts of a GRPO step; filter: rollouts of a Filter stage; evaluation: held-out samples of the
    stage's model."""
    step: int
    """Step of the stage, or slice of a Filter stage, from 1; 0 for an evaluation."""

    @property
    def key(self) -> str:
        """Identity of the file in hashes and messages."""
        return f"{self.stage}/{self.set}/{self.step}"


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """The columns of a trajectory that the selection needs."""

    prompt_id: str
    sample: int
    failed: bool


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """The selected groups and trajectories, by `TrajectoryFile.key` and prompt id."""

    groups: frozenset[tuple[str, str]]
    """(file, prompt id) of the groups in the viewer. Groups are complete, so that rollouts can be compared."""
    scored: frozenset[tuple[str, str, int]]
    """(file, prompt id, sample) of the trajectories that a model scores."""


def find_files(state: JobState, job: AgenticRLJob, stages: Collection[str] = ()) -> list[TrajectoryFile]:
    """Return the files of the job's stages in the order of the manifest: the steps of a stage, then its evaluation.

    `stages`: names of the stages to include; empty: all. Raises AnalysisError for an unknown stage, or without files.
    """
    names = [stage.name for stage in job.spec.stages]
    unknown = sorted(set(stages) - set(names))
    if unknown:
        raise AnalysisError(f"{job.metadata.name} has no stage {unknown[0]!r}; its stages are {', '.join(names)}")
    files = [file for file in stored_files(state, job) if not stages or file.stage in stages]
    if not files:
        raise AnalysisError(
            f"{state.root} contains no trajectories{' of these stages' if stages else ''} yet. A job stores its first "
            "trajectories after SFT, with the first evaluation or RL step. Continue the job, then analyse it again"
        )
    return files


def stored_files(state: JobState, job: AgenticRLJob) -> list[TrajectoryFile]:
    """Return the files that exist now, in the order of the manifest: the steps of a stage, then its evaluation."""
    files: list[TrajectoryFile] = []
    for stage in job.spec.stages:
        folder = state.stage(stage.name)
        for step, path in trajectory_store.step_files(folder.trajectories):
            files.append(TrajectoryFile(path, stage.name, SETS.get(stage.type, "training"), step))
        if folder.evaluation_trajectories.exists():
            files.append(TrajectoryFile(folder.evaluation_trajectories, stage.name, "evaluation", 0))
    return files


def read_rows(source: TrajectoryFile) -> list[TrajectoryRow]:
    """Return the rows of a file with the columns for the selection. Raises TrajectoryStoreError for a damaged file."""
    columns = ["prompt_id", "sample", "stop", "verdict"]
    return [
        TrajectoryRow(row["prompt_id"], row["sample"], row["stop"] == "infrastructure" or row["verdict"] in EXCLUDED)
        for row in trajectory_store.stream(source.path, columns)
    ]


def file_to_score(sources: Sequence[TrajectoryFile], stage: str | None = None) -> TrajectoryFile:
    """Return the file to score: samples of the stage's final weights, or of weights at most one step older. Pure.

    An evaluation has samples of the final weights of its stage. Without an evaluation, the newest step is used.
    `stage`: name of the stage; the default, also for a stage without files, is the last stage with files.
    """
    name = stage if any(source.stage == stage for source in sources) else sources[-1].stage
    candidates = [source for source in sources if source.stage == name]
    return next((source for source in candidates if source.set == "evaluation"), candidates[-1])


def select_samples(
    rows: Sequence[tuple[TrajectoryFile, Sequence[TrajectoryRow]]],
    *,
    limit: int,
    scored: TrajectoryFile | None = None,
    sample: int = 0,
) -> SampleSelection:
    """Select groups for the viewer and trajectories to score. Pure; by hash, so equal on every machine.

    Takes one group of each file, then a second one of each, and so on, up to `limit` trajectories. The last file of
    each stage and set comes first. The groups of scored trajectories are always included.

    Args:
        rows: each file with its rows.
        limit: approximate number of trajectories in the viewer; groups stay complete.
        scored: the file of the trajectories to score; None: none are scored.
        sample: number of trajectories to score (the paper: 64), without lost rollouts.
    """
    drawn: set[tuple[str, str, int]] = set()
    groups: dict[tuple[str, str], int] = {}
    queue: list[tuple[int, bool, int, tuple[str, str], int]] = []
    last = {(source.stage, source.set): source for source, _ in rows}
    for source, members in rows:
        sizes: dict[tuple[str, str], int] = {}
        for row in members:
            group = (source.key, row.prompt_id)
            sizes[group] = sizes.get(group, 0) + 1
        if source == scored:
            usable = [(source.key, row.prompt_id, row.sample) for row in members if not row.failed]
            drawn = set(sorted(usable, key=_hash)[:sample])
            groups = {group: sizes[group] for group in {(key, prompt) for key, prompt, _ in drawn}}
        older = last[source.stage, source.set] != source
        for rank, group in enumerate(sorted(sizes, key=_hash)):
            queue.append((rank, older, _hash(source.key), group, sizes[group]))
    total = sum(groups.values())
    for *_, group, size in sorted(queue):
        if total >= limit:
            break
        if group not in groups:
            groups[group] = size
            total += size
    return SampleSelection(frozenset(groups), frozenset(drawn))


def _hash(name: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(name).encode(), digest_size=8).digest(), "big")
