"""Reads each trajectory file of a job once, and collects the input of the figures, the study and the viewer.

The second step of `rstar2 analyse`, after the selection in `sources.py`. `pages.py` writes the collected figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from rstar2_train.analysis.figures import Point, without_tokens
from rstar2_train.analysis.roc import ReasonTally
from rstar2_train.analysis.score import Scorer
from rstar2_train.analysis.sources import SampleSelection, TrajectoryFile
from rstar2_train.analysis.study import Study
from rstar2_train.analysis.tokens import annotate
from rstar2_train.analysis.viewer import ViewerData
from rstar2_train.api.roles import ToolParser
from rstar2_train.evaluation.scores import group_by
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.tracking.metrics import step_metrics
from rstar2_train.tracking.traces import Decode


@dataclass(slots=True)
class TrajectoryFigures:
    """The figures of all files."""

    points: list[Point] = field(default_factory=list)
    surprisal: dict[str, Study] = field(default_factory=dict)
    """Stage -> study of the trajectories in the viewer."""
    entropy: Study = field(default_factory=lambda: Study("entropy"))
    """Study of the scored trajectories."""
    logprob_gaps: list[float] = field(default_factory=list)
    """Per scored trajectory, the mean of |log p of the scoring model - log p of the engine|, in nats."""
    reasons: dict[str, dict[str, ReasonTally]] = field(default_factory=dict)
    """Stage -> `selection_reason` -> all rollouts of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """Reads trajectory files into figures and viewer data."""

    selection: SampleSelection
    decode: Decode
    parser: ToolParser
    """Form of the calls of the job's model."""
    scorer: Scorer | None
    """Computes entropies of the selected trajectories; None: no entropies."""
    data: ViewerData
    figures: TrajectoryFigures = field(default_factory=TrajectoryFigures)

    def read(self, file: TrajectoryFile, *, on_row: Callable[[], None]) -> None:
        """Add all trajectories of a file to the figures, and the selected ones to the viewer.

        `on_row`: called for each trajectory.
        """
        trajectories: list[Trajectory] = []
        reasons = self.figures.reasons.setdefault(file.stage, defaultdict(ReasonTally))
        for row in trajectory_store.stream(file.path):
            trajectory = trajectory_store.from_row(row)
            if file.set == "training":
                reasons[trajectory.selection_reason].add(trajectory)
            if (file.key, trajectory.prompt_id) in self.selection.groups:
                self._show(file, trajectory)
            trajectories.append(without_tokens(trajectory))
            on_row()
        groups = list(group_by(trajectories, lambda trajectory: trajectory.prompt_id).values())
        self.figures.points.append(Point(file, len(trajectories), step_metrics(groups, {}, {})))

    def _show(self, file: TrajectoryFile, trajectory: Trajectory) -> None:
        """Add a trajectory to the viewer and the studies, with entropies if it is selected for scoring."""
        entropies = None
        if self.scorer is not None and (file.key, trajectory.prompt_id, trajectory.sample) in self.selection.scored:
            logprobs, scored = self.scorer.score(trajectory)
            self.figures.logprob_gaps.append(logprob_gap(trajectory, logprobs.tolist()))
            entropies = scored.tolist()
        turns = annotate(trajectory, self.decode, entropies, parser=self.parser)
        if not trajectory.failed:
            self.figures.surprisal.setdefault(file.stage, Study("surprisal")).add(turns)
            self.figures.entropy.add(turns)
        self.data.add(file, trajectory, turns, self.decode(trajectory.prompt_ids))


def logprob_gap(trajectory: Trajectory, logprobs: list[float]) -> float:
    """Return the mean of |log p of the scoring model - log p of the engine| over the model tokens, in nats. Pure.

    It is near 0 if the scoring model sampled the trajectory; otherwise the entropies are those of another policy.
    """
    engine = [value for segment in trajectory.segments for value in segment.logprobs]
    gaps = [abs(scored - sampled) for scored, sampled in zip(logprobs, engine, strict=True)]
    return sum(gaps) / max(1, len(gaps))
