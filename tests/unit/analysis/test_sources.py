"""The trajectory files of a job, and the selection of groups and samples."""

from pathlib import Path

import pytest

from rstar2_train.analysis.sources import (
    AnalysisError,
    TrajectoryFile,
    TrajectoryRow,
    file_to_score,
    find_files,
    read_rows,
    select_samples,
)
from rstar2_train.api.state_dir import JobState


def test_find_files_are_in_manifest_order(filled: JobState) -> None:
    """Files are in the order of the stages and steps, and their rows have the columns of the selection."""
    files = find_files(filled, filled.job())
    assert [file.key for file in files] == [
        "rl-1/training/1", "rl-1/training/2", "rl-1/evaluation/0", "hard/filter/1", "rl-2/training/1"
    ]  # fmt: skip
    assert [file.key for file in find_files(filled, filled.job(), ["hard"])] == ["hard/filter/1"]
    rows = read_rows(files[0])
    assert [(row.prompt_id, row.sample) for row in rows][:4] == [("p", 0), ("p", 1), ("p", 2), ("p", 3)]
    assert [row.failed for row in rows] == [False, False, False, True, False, False, False, False]


def test_find_files_without_trajectories_raises(state: JobState, filled: JobState) -> None:
    """An unknown stage, or no trajectories, is an error."""
    with pytest.raises(AnalysisError, match="has no stage 'rl-9'; its stages are sft, rl-1, hard, rl-2, eval"):
        find_files(filled, filled.job(), ["rl-9"])
    with pytest.raises(AnalysisError, match="contains no trajectories of these stages yet"):
        find_files(filled, filled.job(), ["eval"])
    with pytest.raises(AnalysisError, match=r"contains no trajectories yet\. "):
        find_files(JobState(state.root / "other"), state.job())


def file(step: int, stage: str = "rl", kind: str = "training") -> TrajectoryFile:
    return TrajectoryFile(Path("x"), stage, kind, step)  # type: ignore[arg-type]


def members(groups: int, size: int = 4) -> list[TrajectoryRow]:
    return [TrajectoryRow(f"p{group}", sample, failed=sample == 0) for group in range(groups) for sample in range(size)]


def test_select_samples_below_limit_selects_all() -> None:
    """Below the limit, all groups are selected."""
    rows = [(file(1), members(3)), (file(2), members(2))]
    assert len(select_samples(rows, limit=1000).groups) == 5


def test_select_samples_takes_groups_of_every_file() -> None:
    """Groups are complete and spread over all files."""
    rows = [(file(step), members(10)) for step in range(1, 6)]
    chosen = select_samples(rows, limit=20).groups
    assert len(chosen) == 5 and {key for key, _ in chosen} == {source.key for source, _ in rows}
    assert len(select_samples(rows, limit=21).groups) == 6
    assert select_samples(rows, limit=4).groups == {
        (file(5).key, next(iter(select_samples(rows, limit=4).groups))[1])
    }, "newest first"
    assert select_samples(rows, limit=20) == select_samples(rows, limit=20)


def test_select_samples_shows_scored_without_lost() -> None:
    """Scored trajectories are in the viewer, and none of them is lost."""
    rows = [(file(1), members(30)), (file(2), members(30))]
    choice = select_samples(rows, limit=1, scored=file(1), sample=16)
    assert len(choice.scored) == 16
    assert {(key, prompt) for key, prompt, _ in choice.scored} == choice.groups
    assert all(key == file(1).key and sample != 0 for key, _, sample in choice.scored)


def test_file_to_score_prefers_evaluation_of_stage() -> None:
    """The evaluation of the stage is scored, otherwise its newest step."""
    first, second, held, other = file(1), file(2), file(0, kind="evaluation"), file(1, "rl-2")
    assert file_to_score([first, second, held, other], "rl") == held
    assert file_to_score([first, second, other], "rl") == second
    assert file_to_score([first, second, held, other], "./some/folder") == other
