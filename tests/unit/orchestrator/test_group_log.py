"""The log of the complete groups of a batch: what a crash keeps, and the Parquet file that it becomes."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from rstar2_train.orchestrator.pipeline.generator import Generator
from rstar2_train.orchestrator.pipeline.group_log import GroupLog
from rstar2_train.rollout import trajectory_store
from rstar2_train.rollout.trajectory import Segment, Trajectory
from tests.support.token_arrays import logprob_array, token_array


def group(prompt_id: str) -> list[Trajectory]:
    return [
        Trajectory(
            prompt_id,
            sample,
            token_array([1, 2]),
            [Segment("model", token_array([3, 4]), logprobs=logprob_array([-0.5, -0.25]))],
        )
        for sample in range(3)
    ]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    return tmp_path / "trajectories" / "step-000001.parquet"


def test_group_log_seal_writes_the_groups_in_order(parquet: Path) -> None:
    """The Parquet file has the groups in the order of the prompts, not of their completion; the log is deleted."""
    groups = GroupLog(parquet)
    for prompt_id in "bca":
        groups.append(group(prompt_id))
    groups.seal(["a", "b", "c"])
    assert trajectory_store.read(parquet) == [*group("a"), *group("b"), *group("c")]
    assert [path.name for path in parquet.parent.iterdir()] == [parquet.name]


@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.97, 1.0])
def test_group_log_torn_record_is_dropped(parquet: Path, kept: float) -> None:
    """A crash in the middle of the last record loses this record only, and later groups follow the intact ones."""
    groups = GroupLog(parquet)
    groups.append(group("a"))
    log = parquet.with_suffix(".groups")
    first = log.stat().st_size
    groups.append(group("b"))
    content = log.read_bytes()
    log.write_bytes(content[: first + int(kept * (len(content) - first))])

    restarted = GroupLog(parquet)
    expected = [group("a"), group("b")] if kept == 1.0 else [group("a")]
    assert restarted.read() == expected
    restarted.append(group("c"))
    assert GroupLog(parquet).read() == [*expected, group("c")]


def test_group_log_damaged_record_is_dropped(parquet: Path) -> None:
    """A record with another checksum, and all records after it, are dropped."""
    groups = GroupLog(parquet)
    groups.append(group("a"))
    log = parquet.with_suffix(".groups")
    first = log.stat().st_size
    groups.append(group("b"))
    content = bytearray(log.read_bytes())
    content[first + 40] ^= 1
    log.write_bytes(content)
    assert GroupLog(parquet).read() == [group("a")]


def test_end_of_a_stage_leaves_no_log(tmp_path: Path) -> None:
    """A kill between the file of a step and the deletion of its log leaves the log; later steps did not train."""
    for name in ("step-000001.parquet", "step-000001.groups", "step-000002.parquet", "step-000003.groups"):
        (tmp_path / name).touch()
    stage = SimpleNamespace(_ctx=SimpleNamespace(folder=SimpleNamespace(trajectories=tmp_path)))
    Generator.discard_unused(stage, 1)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001.parquet"]
