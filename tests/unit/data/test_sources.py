"""How a manifest's `data` and `source` values become paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.data import sources
from rstar2_train.data.problems import DataError
from rstar2_train.data.sources import resolve, unusable


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Seeds that a generator `small` was called with; it writes one file."""
    seeds: list[int] = []

    def make(directory: Path, *, seed: int) -> None:
        seeds.append(seed)
        (directory / "half.jsonl").write_text("{}")
        if seed == 13:
            raise RuntimeError("disk full")
        (directory / "data.jsonl").write_text(str(seed))

    monkeypatch.setitem(sources.GENERATORS, "small", (1, make))
    return seeds


def test_a_path_is_relative_to_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert resolve("a.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=0) == tmp_path / "a.jsonl"
    absolute = str(tmp_path / "a.jsonl")
    assert resolve(absolute, base_dir=Path("/"), state_dir=tmp_path, seed=0) == tmp_path / "a.jsonl"


def test_a_missing_path_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"b\.jsonl: no such file or folder \(looked at {tmp_path}/b\.jsonl\)"):
        resolve("b.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=0)


@pytest.mark.parametrize(
    ("uri", "advice"),
    [
        ("pvc://models/Qwen3-14B-Base", "give the path of a local copy"),
        ("hf://Qwen/Qwen3-14B-Base", "hf download Qwen/Qwen3-14B-Base"),
        ("s3://bucket/x", "allowed: a path, generated://"),
        ("generated://large/x.jsonl", "there is no generator 'large'; there are: "),
    ],
)
def test_what_is_not_here_says_what_to_do(tmp_path: Path, uri: str, advice: str) -> None:
    with pytest.raises(DataError) as caught:
        resolve(uri, base_dir=tmp_path, state_dir=tmp_path, seed=0)
    assert uri in str(caught.value) and advice in str(caught.value)


def test_every_file_is_read_before_anything_starts(tmp_path: Path) -> None:
    good, bad, demos = (tmp_path / name for name in ("good.jsonl", "bad.jsonl", "demos.jsonl"))
    good.write_text('{"problem": "1+1", "answer": 2}\n')
    bad.write_text('{"problem": "1+1", "answer": 2}\n{"problem": "1+2"}\n')
    demos.write_text('{"messages": [{"role": "user", "content": "?"}]}\n')
    stages = [
        {"name": "a", "type": "SFT", "sft": {"data": str(demos)}},
        {"name": "b", "type": "GRPO", "grpo": {"data": str(good), "steps": 1}},
        {"name": "c", "type": "Evaluate", "evaluate": {"benchmarks": [{"name": "x", "data": str(bad)}]}},
        {"name": "d", "type": "Filter", "filter": {"data": str(tmp_path / "none.jsonl")}},
    ]
    spec = {"model": {"source": str(tmp_path)}, "stages": stages, "validation": {"data": str(good)}}
    found = unusable(AgenticRLJob.model_validate({"metadata": {"name": "x"}, "spec": spec}))
    assert list(found) == [
        "spec.model.source",
        "spec.stages[0].sft.data",
        "spec.stages[2].evaluate.benchmarks[0].data",
        "spec.stages[3].filter.data",
    ]
    assert "no config.json" in found["spec.model.source"]
    assert found["spec.stages[0].sft.data"] == f"{demos}:1: no assistant message, so there is nothing to learn from"
    assert found["spec.stages[2].evaluate.benchmarks[0].data"].startswith(f"{bad}:2: answer must be")
    assert found["spec.stages[3].filter.data"] == f"{tmp_path / 'none.jsonl'}: no such file"


def test_generated_data_is_made_once_a_seed(tmp_path: Path, made: list[int]) -> None:
    for seed in (1, 1, 2, 1):
        path = resolve("generated://small/data.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=seed)
        assert path.read_text() == str(seed) and path.is_relative_to(tmp_path / "generated")
    assert made == [1, 2]


def test_a_file_the_generator_does_not_make(tmp_path: Path, made: list[int]) -> None:
    with pytest.raises(DataError, match=r"makes no 'other'; it makes: data\.jsonl, half\.jsonl"):
        resolve("generated://small/other", base_dir=tmp_path, state_dir=tmp_path, seed=0)


def test_a_newer_generator_makes_its_data_again(
    tmp_path: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = resolve("generated://small/data.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=1)
    old.write_text("by version 1")
    _, make = sources.GENERATORS["small"]
    monkeypatch.setitem(sources.GENERATORS, "small", (2, make))
    for _ in range(2):
        new = resolve("generated://small/data.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=1)
        assert (new, new.read_text()) == (old, "1")
    assert made == [1, 1]
    assert [entry.name for entry in (tmp_path / "generated").iterdir()] == ["small-seed-1"]


def test_a_generator_that_fails_leaves_nothing_half_made(tmp_path: Path, made: list[int]) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="disk full"):
            resolve("generated://small/data.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=13)
    assert list((tmp_path / "generated").iterdir()) == []
    assert made == [13, 13]
