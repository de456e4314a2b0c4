"""The files of an evaluation: its record, its page, and its trajectories, in the folder of a stage."""

from __future__ import annotations

from collections.abc import Iterable

from rstar2_train.api.state_dir import StageState
from rstar2_train.evaluation.html_report import render_page
from rstar2_train.evaluation.records import Evaluation, write_evaluation
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Trajectory
from rstar2_train.utils.files import write_atomically


def save_evaluation(folder: StageState, evaluation: Evaluation, trajectories: Iterable[Trajectory]) -> None:
    """Write the files of an evaluation; the record last, so that it exists only with the others."""
    trajectory_store.write(folder.evaluation_trajectories, trajectories)
    write_atomically(folder.evaluation_page, render_page(evaluation))
    write_evaluation(folder.evaluation_file, evaluation)
