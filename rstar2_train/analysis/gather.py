"""One reading of a job's trajectory files: what the figures, the study and the viewer want of them, in one pass.

Second in the flow, after `sources` has chosen; `pages` writes what is found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from rstar2_train.analysis import figures
from rstar2_train.analysis.roc import ReasonTally
from rstar2_train.analysis.score import Scorer
from rstar2_train.analysis.sources import SampleSelection, TrajectoryFile
from rstar2_train.analysis.study import Study
from rstar2_train.analysis.tokens import Decode, annotate
from rstar2_train.analysis.viewer import ViewerData
from rstar2_train.evaluation.statistics import group_by
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.metrics import step_metrics


@dataclass(slots=True)
class TrajectoryFigures:
    """What one reading of all files has gathered."""

    points: list[figures.Point] = field(default_factory=list)
    surprisal: dict[str, Study] = field(default_factory=dict)
    """By stage, over the trajectories that the viewer shows."""
    entropy: Study = field(default_factory=lambda: Study("entropy"))
    """Over the scored trajectories."""
    gap: list[float] = field(default_factory=list)
    """For each scored trajectory, the mean of |log p of the scoring model - log p of the engine|, in nats."""
    reasons: dict[str, dict[str, ReasonTally]] = field(default_factory=dict)
    """By stage, then by `kept_reason`: every rollout of its steps."""


def read(
    file: TrajectoryFile,
    choice: SampleSelection,
    decode: Decode,
    scorer: Scorer | None,
    data: ViewerData,
    found: TrajectoryFigures,
    *,
    advance: Callable[[], None],
) -> None:
    """Read a file into `found` and `data`: its figures, and what of it was chosen. `advance` is called for each row."""
    everyone: list[Trajectory] = []
    reasons = found.reasons.setdefault(file.stage, defaultdict(ReasonTally))
    study = found.surprisal.setdefault(file.stage, Study("surprisal"))
    for row in trajectory_store.stream(file.path):
        trajectory = trajectory_store.from_row(row)
        if file.set == "training":
            reasons[trajectory.kept_reason].add(trajectory)
        if (file.key, trajectory.prompt_id) in choice.groups:
            entropies = None
            if scorer is not None and (file.key, trajectory.prompt_id, trajectory.sample) in choice.scored:
                logprobs, entropies = scorer.score(trajectory)
                found.gap.append(logprob_gap(trajectory, logprobs.tolist()))
                entropies = entropies.tolist()
            turns = annotate(trajectory, decode, entropies)
            if not trajectory.failed:
                study.add(turns)
                found.entropy.add(turns)
            data.add(file, trajectory, turns, decode(trajectory.prompt_ids))
        everyone.append(figures.slim(trajectory))
        advance()
    groups = list(group_by(everyone, lambda one: one.prompt_id).values())
    found.points.append(figures.Point(file, len(everyone), step_metrics(groups, {}, {})))


def logprob_gap(trajectory: Trajectory, logprobs: list[float]) -> float:
    """Mean of |log p under the scoring model - log p under the engine| over the model tokens, in nats. Pure.

    Near 0 where the scoring model is the one that sampled: it tells how far its entropies can be trusted.
    """
    engine = [value for segment in trajectory.segments for value in segment.logprobs]
    return sum(abs(ours - theirs) for ours, theirs in zip(logprobs, engine, strict=True)) / max(1, len(engine))
