"""Trajectory files: complete or absent, and read back field by field."""

from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Segment, ToolCall, Trajectory
from tests.support.token_arrays import logprob_array, token_array


def full() -> Trajectory:
    """Return a trajectory in which no field has its default."""
    call = ToolCall(
        turn=0, name="t", code="é", stdin="1", status="error", response="r", queue_seconds=0.5, run_seconds=1
    )
    segments = [
        Segment(
            "model",
            token_array([5, 6]),
            logprobs=logprob_array([-0.5, -0.25]),
            versions=[("rl/1", 0), ("rl/2", 1)],
            seconds=2.0,
        ),
        Segment("tool", token_array([7]), seconds=0.5),
    ]
    return Trajectory(
        prompt_id="p", sample=3, prompt_ids=token_array([1, 2]), segments=segments, calls=[call], stop="length",
        turns=2, answer_tags=1, tags_balanced=False, text="t", answer="4", gold="5", verdict="wrong", reward=1.0,
        p_err=0.5, p_format=0.25, kept=True, selection_reason="negative", slice="L1", hard=True, started_at=9.0,
        seconds=3.0, error="e", lost_to="judge", correct_from=0.5, reason="r",
    )  # fmt: skip


def test_write_and_read_keep_every_field(tmp_path: Path) -> None:
    """Every field of a trajectory is stored and read back; a second write replaces the file."""
    blank = Trajectory(prompt_id="q", sample=0, prompt_ids=token_array([1]))
    for field in fields(Trajectory):
        assert getattr(full(), field.name) != getattr(blank, field.name), f"{field.name} is not covered by this test"
    rows = [full(), blank, Trajectory(prompt_id="r", sample=1, prompt_ids=token_array([]), stop="infrastructure")]
    path = trajectory_store.step_path(tmp_path / "trajectories", 40)
    assert path.name == "step-000040.parquet"
    trajectory_store.write(path, rows)
    assert trajectory_store.read(path) == rows
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    trajectory_store.write(path, rows[:1])
    assert trajectory_store.read(path) == rows[:1]


def test_stream_yields_rows_or_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can be read row by row, completely or by column."""
    monkeypatch.setattr(trajectory_store, "BATCH", 2)
    rows = [Trajectory(prompt_id="p", sample=sample, prompt_ids=token_array([sample])) for sample in range(5)]
    trajectory_store.write(tmp_path / "x.parquet", iter(rows))
    assert [trajectory_store.from_row(row) for row in trajectory_store.stream(tmp_path / "x.parquet")] == rows
    assert list(trajectory_store.stream(tmp_path / "x.parquet", ["sample"])) == [
        {"sample": sample} for sample in range(5)
    ]


def test_read_file_without_lost_to_uses_the_default(tmp_path: Path) -> None:
    """A file that was written before the column `lost_to` existed stays readable."""
    path = tmp_path / "step-000001.parquet"
    trajectory_store.write(path, [full()])
    pq.write_table(pq.read_table(path).drop_columns(["lost_to"]), path)
    expected = full()
    expected.lost_to = None
    assert trajectory_store.read(path) == [expected]


@pytest.mark.parametrize("name", ["later", "calls.later"])
def test_read_file_of_another_version_names_the_column(tmp_path: Path, name: str) -> None:
    """A row would lose a column or member that this version does not have; the other columns can still be read."""
    path = tmp_path / "step-000001.parquet"
    trajectory_store.write(path, [full()])
    table = pq.read_table(path)
    if name == "later":
        table = table.append_column("later", pa.array([1]))
    else:
        calls = [[call | {"later": 1} for call in row] for row in table["calls"].to_pylist()]
        table = table.set_column(table.column_names.index("calls"), "calls", [calls])
    pq.write_table(table, path)
    with pytest.raises(trajectory_store.TrajectoryStoreError, match=rf"another version wrote .*: {name}$"):
        trajectory_store.read(path)
    with pytest.raises(trajectory_store.TrajectoryStoreError, match="another version"):
        trajectory_store.read_row(path, 0)
    assert [row["sample"] for row in trajectory_store.stream(path, ["sample"])] == [3]


def test_write_no_trajectories_creates_a_file(tmp_path: Path) -> None:
    """A step without trajectories has an empty file."""
    trajectory_store.write(tmp_path / "x.parquet", [])
    assert trajectory_store.read(tmp_path / "x.parquet") == []


def test_write_failure_keeps_the_old_file(tmp_path: Path) -> None:
    """A failed write keeps the existing file and leaves no temporary file."""
    path = tmp_path / "step-000001.parquet"
    trajectory_store.write(path, [full()])
    broken = full()
    broken.segments[0].token_ids = ["not a number"]  # type: ignore[list-item]
    with pytest.raises(pa.ArrowInvalid):
        trajectory_store.write(path, [broken])
    assert trajectory_store.read(path) == [full()]
    assert len(list(tmp_path.iterdir())) == 1


def test_write_on_full_disk_raises_and_cleans_up(tmp_path: Path) -> None:
    """A full disk raises OSError and leaves nothing behind."""
    full_device = Path("/dev/full")
    if not full_device.exists():
        pytest.skip("this system has no /dev/full to stand for a full disk")
    link = tmp_path / f".x.parquet.{__import__('os').getpid()}"
    link.symlink_to(full_device)
    with pytest.raises(OSError, match="No space"):
        trajectory_store.write(tmp_path / "x.parquet", [full()] * 50)
    assert list(tmp_path.iterdir()) == []


def test_read_invalid_file_names_it(tmp_path: Path) -> None:
    """A torn, missing or foreign file is rejected with its name."""
    torn, other = tmp_path / "torn.parquet", tmp_path / "other.parquet"
    torn.write_bytes(b"PAR1 torn")
    pq.write_table(pa.table({"x": [1]}), other)
    with pytest.raises(trajectory_store.TrajectoryStoreError, match=r"torn\.parquet cannot be read"):
        trajectory_store.read(torn)
    with pytest.raises(trajectory_store.TrajectoryStoreError, match=r"missing\.parquet"):
        trajectory_store.read(tmp_path / "missing.parquet")
    with pytest.raises(trajectory_store.TrajectoryStoreError, match="does not contain trajectories of format 2"):
        trajectory_store.read(other)


def test_prune_keeps_the_newest_steps(tmp_path: Path) -> None:
    """Pruning deletes the oldest step files and no other file."""
    for step in (1, 2, 10, 1_000_000):
        trajectory_store.write(trajectory_store.step_path(tmp_path, step), [])
    (tmp_path / "notes.txt").touch()
    deleted = trajectory_store.prune(tmp_path, 2)
    assert [file.name for file in deleted] == ["step-000001.parquet", "step-000002.parquet"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "notes.txt",
        "step-000010.parquet",
        "step-1000000.parquet",
    ]
    assert trajectory_store.prune(tmp_path, 2) == []
