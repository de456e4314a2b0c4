"""Which files there are, and what is taken out of them."""

from pathlib import Path

import pytest

from rstar2_train.analysis.sources import AnalysisError, TrajectoryFile, TrajectoryRow, census, choose, find, pool
from rstar2_train.api.state_dir import JobState


def test_files_come_in_the_order_of_the_job(filled: JobState) -> None:
    files = find(filled, filled.job())
    assert [one.key for one in files] == [
        "rl-1/training/1", "rl-1/training/2", "rl-1/evaluation/0", "hard/filter/1", "rl-2/training/1"
    ]  # fmt: skip
    assert [one.key for one in find(filled, filled.job(), ["hard"])] == ["hard/filter/1"]
    rows = census(files[0])
    assert [(row.prompt_id, row.sample) for row in rows][:4] == [("p", 0), ("p", 1), ("p", 2), ("p", 3)]
    assert [row.failed for row in rows] == [False, False, False, True, False, False, False, False]


def test_nothing_to_read_is_said(state: JobState, filled: JobState) -> None:
    with pytest.raises(AnalysisError, match="has no stage 'rl-9'; it has: sft, rl-1, hard, rl-2, eval"):
        find(filled, filled.job(), ["rl-9"])
    with pytest.raises(AnalysisError, match="holds no trajectories yet of these stages"):
        find(filled, filled.job(), ["eval"])
    with pytest.raises(AnalysisError, match="holds no trajectories yet: "):
        find(JobState(state.root / "elsewhere"), state.job())


def file(step: int, stage: str = "rl", kind: str = "training") -> TrajectoryFile:
    return TrajectoryFile(Path("x"), stage, kind, step)  # type: ignore[arg-type]


def members(groups: int, size: int = 4) -> list[TrajectoryRow]:
    return [TrajectoryRow(f"p{group}", sample, failed=sample == 0) for group in range(groups) for sample in range(size)]


def test_all_is_shown_when_there_is_room() -> None:
    rows = [(file(1), members(3)), (file(2), members(2))]
    assert len(choose(rows, limit=1000).groups) == 5


def test_groups_stay_whole_and_every_file_has_its_turn() -> None:
    rows = [(file(step), members(10)) for step in range(1, 6)]
    chosen = choose(rows, limit=20).groups
    assert len(chosen) == 5 and {key for key, _ in chosen} == {one.key for one, _ in rows}
    assert len(choose(rows, limit=21).groups) == 6
    assert choose(rows, limit=4).groups == {(file(5).key, next(iter(choose(rows, limit=4).groups))[1])}, "newest first"
    assert choose(rows, limit=20) == choose(rows, limit=20)


def test_scored_trajectories_are_shown_and_none_of_them_was_lost() -> None:
    rows = [(file(1), members(30)), (file(2), members(30))]
    choice = choose(rows, limit=1, scored=file(1), sample=16)
    assert len(choice.scored) == 16
    assert {(key, prompt) for key, prompt, _ in choice.scored} == choice.groups
    assert all(key == file(1).key and sample != 0 for key, _, sample in choice.scored)


def test_scored_are_what_the_models_own_weights_sampled() -> None:
    first, second, held, other = file(1), file(2), file(0, kind="evaluation"), file(1, "rl-2")
    assert pool([first, second, held, other], "rl") == held
    assert pool([first, second, other], "rl") == second
    assert pool([first, second, held, other], "./some/folder") == other
