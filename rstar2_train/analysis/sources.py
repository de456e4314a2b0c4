"""Which trajectories a job has stored, and which of them the viewer shows and the entropy study takes.

First in the flow of `rstar2 analyse`: finds the Parquet files of a job, counts what is in them by a few columns, and
chooses. The choice is pure and depends on nothing but names: the same files give the same pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.rollout import trajectory_store

Set = Literal["training", "filter", "evaluation"]
SETS: dict[str, Set] = {"GRPO": "training", "Filter": "filter"}


class AnalysisError(Exception):
    """Why there is nothing to show, and what to do; for a person to read."""


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """One file of trajectories."""

    path: Path
    stage: str
    set: Set
    """training: rollouts of a GRPO step; filter: of a Filter stage; evaluation: of the stage's model, held out."""
    step: int
    """1-based: of the stage's steps, or of a Filter stage's slices; 0 for an evaluation."""

    @property
    def key(self) -> str:
        """A name for it in seeds and messages."""
        return f"{self.stage}/{self.set}/{self.step}"


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """What the choice needs to know of a trajectory."""

    prompt_id: str
    sample: int
    failed: bool


@dataclass(frozen=True, slots=True)
class SampleSelection:
    """What is taken out of the files. Trajectories and groups are named by `TrajectoryFile.key` and prompt."""

    groups: frozenset[tuple[str, str]]
    """(file, prompt id): groups that the viewer shows, whole, so that one sees what a rollout was compared with."""
    scored: frozenset[tuple[str, str, int]]
    """(file, prompt id, sample): trajectories that a model is to score."""


def find(state: JobState, job: AgenticRLJob, stages: Collection[str] = ()) -> list[TrajectoryFile]:
    """The files of the job's stages, in the order of the manifest: each stage's steps, then its evaluation.

    `stages`: these alone; empty: all. Raises AnalysisError for a stage that the job has not, or when there is no file.
    """
    names = [stage.name for stage in job.spec.stages]
    unknown = sorted(set(stages) - set(names))
    if unknown:
        raise AnalysisError(f"{job.metadata.name} has no stage {unknown[0]!r}; it has: {', '.join(names)}")
    found: list[TrajectoryFile] = []
    for stage in job.spec.stages:
        if stages and stage.name not in stages:
            continue
        folder = state.stage(stage.name)
        for step, path in trajectory_store.step_files(folder.trajectories):
            found.append(TrajectoryFile(path, stage.name, SETS.get(stage.type, "training"), step))
        if folder.evaluation_trajectories.exists():
            found.append(TrajectoryFile(folder.evaluation_trajectories, stage.name, "evaluation", 0))
    if not found:
        raise AnalysisError(
            f"{state.root} holds no trajectories yet{' of these stages' if stages else ''}: a job stores the first "
            "when it has sampled (after SFT, with its first evaluation or RL step). Run it on, then analyse again"
        )
    return found


def census(source: TrajectoryFile) -> list[TrajectoryRow]:
    """Who is in a file, by four of its columns. Raises TrajectoryStoreError for a file that cannot be read."""
    columns = ["prompt_id", "sample", "stop", "verdict"]
    return [
        TrajectoryRow(row["prompt_id"], row["sample"], row["stop"] == "infrastructure" or row["verdict"] == "internal")
        for row in trajectory_store.stream(source.path, columns)
    ]


def pool(sources: Sequence[TrajectoryFile], stage: str | None = None) -> TrajectoryFile:
    """The file whose trajectories a model scores: what the last stage's own weights sampled.

    An evaluation was sampled with exactly the weights that the stage handed on; without one, the newest step's
    trajectories come from weights at most a step older. `stage`: this one in place of the last that has a file; it is
    the last again where it has none. Pure.
    """
    name = stage if any(source.stage == stage for source in sources) else sources[-1].stage
    own = [source for source in sources if source.stage == name]
    return next((source for source in own if source.set == "evaluation"), own[-1])


def choose(
    rows: Sequence[tuple[TrajectoryFile, Sequence[TrajectoryRow]]],
    *,
    limit: int,
    scored: TrajectoryFile | None = None,
    sample: int = 0,
) -> SampleSelection:
    """Which groups to show and which trajectories to score. Pure; by hash, so the same on every machine.

    Groups are taken one of each file, then a second of each, and so on, until there are `limit` trajectories; the last
    file of a stage and set comes first. The groups of scored trajectories are always shown, however many they are.

    Args:
        rows: each file with what is in it.
        limit: trajectories to show, about: groups stay whole.
        scored: the file to draw scored trajectories from; None: none.
        sample: how many of them (the paper: 64); those that infrastructure lost are left out.
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
    shown = sum(groups.values())
    for *_, group, size in sorted(queue):
        if shown >= limit:
            break
        if group not in groups:
            groups[group] = size
            shown += size
    return SampleSelection(frozenset(groups), frozenset(drawn))


def _hash(name: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(name).encode(), digest_size=8).digest(), "big")
