"""Resolution of a manifest's `data` and `source` values to paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.data import sources
from rstar2_train.data.problems import DataError
from rstar2_train.data.sources import find_invalid_files, resolve


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Register a generator `small` that writes two files; return the seeds of its calls."""
    seeds: list[int] = []

    def generate(directory: Path, *, seed: int) -> None:
        seeds.append(seed)
        (directory / "half.jsonl").write_text("{}")
        if seed == 13:
            raise RuntimeError("disk full")
        (directory / "data.jsonl").write_text(str(seed))

    monkeypatch.setitem(sources.GENERATORS, "small", (1, generate))
    return seeds


def test_resolve_path_is_relative_to_manifest(tmp_path: Path) -> None:
    """A relative path starts at the folder of the manifest."""
    (tmp_path / "a.jsonl").touch()
    assert resolve("a.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=0) == tmp_path / "a.jsonl"
    absolute = str(tmp_path / "a.jsonl")
    assert resolve(absolute, base_dir=Path("/"), state_dir=tmp_path, seed=0) == tmp_path / "a.jsonl"


def test_resolve_missing_path_names_absolute_path(tmp_path: Path) -> None:
    """The error of a missing path names the absolute path."""
    with pytest.raises(DataError, match=rf"b\.jsonl: no such file or folder: {tmp_path}/b\.jsonl"):
        resolve("b.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=0)


@pytest.mark.parametrize(
    ("uri", "advice"),
    [
        ("pvc://models/Qwen3-14B-Base", "use the path of a local copy"),
        ("hf://Qwen/Qwen3-14B-Base", "hf download Qwen/Qwen3-14B-Base"),
        ("ftp://bucket/x", "allowed: a path, generated://"),
        ("s3://bucket", "must be s3://BUCKET/KEY"),
        ("generated://large/x.jsonl", "unknown generator 'large'; existing: "),
        ("~no-user/x", "no such user on this machine; write the whole path"),
        ("$HOME/x.jsonl", "variables of the environment are not expanded in paths"),
        ("link.jsonl", "is a link to nothing, which does not exist"),
        ("x" * 300, "File name too long; pass a file or folder that you may read"),
    ],
)
def test_resolve_unavailable_source_gives_advice(tmp_path: Path, uri: str, advice: str) -> None:
    """The error of a source that needs a cluster or a download gives advice."""
    (tmp_path / "link.jsonl").symlink_to("nothing")
    with pytest.raises(DataError) as caught:
        resolve(uri, base_dir=tmp_path, state_dir=tmp_path, seed=0)
    assert uri[:40] in str(caught.value) and advice in str(caught.value)


def test_find_invalid_files_reports_first_error_per_field(tmp_path: Path) -> None:
    """All files of a job are read, and the first error of each is reported under its field."""
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
    errors = find_invalid_files(AgenticRLJob.model_validate({"metadata": {"name": "x"}, "spec": spec}))
    assert list(errors) == [
        "spec.model.source",
        "spec.stages[0].sft.data",
        "spec.stages[2].evaluate.benchmarks[0].data",
        "spec.stages[3].filter.data",
    ]
    assert errors["spec.model.source"].endswith("with save_pretrained of transformers")
    assert (
        errors["spec.stages[0].sft.data"]
        == f"{demos}:1: messages has no assistant message; SFT trains on assistant messages only"
    )
    assert errors["spec.stages[2].evaluate.benchmarks[0].data"].startswith(f"{bad}:2: answer must be")
    assert errors["spec.stages[3].filter.data"] == f"{tmp_path / 'none.jsonl'}: no such file"


@pytest.mark.parametrize(
    ("level", "fields", "reason"),
    [
        (None, {"shortestFirstSteps": 2}, "shortestFirstSteps is set"),
        (2, {"shortestFirstSteps": 2}, "shortestFirstSteps is set"),
        (1, {"shortestFirstSteps": 2}, ""),
        (None, {"heldOutRows": 1}, "heldOutRows is 1, of 1 usable rows"),
        (None, {"heldOutRows": 0}, ""),
    ],
)
def test_settings_of_sft_need_their_rows(
    tmp_path: Path, level: int | None, fields: dict[str, int], reason: str
) -> None:
    """A setting is not ignored if no demonstration has a level, nor changed if it leaves no row."""
    rows = tmp_path / "rows.jsonl"
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    rows.write_text(json.dumps({"messages": messages} | ({} if level is None else {"level": level})) + "\n")
    stage = {"name": "a", "type": "SFT", "sft": {"data": str(rows)} | fields}
    spec = {"model": {"source": "-"}, "stages": [stage]}
    errors = find_invalid_files(AgenticRLJob.model_validate({"metadata": {"name": "x"}, "spec": spec}))
    error = errors.get("spec.stages[0].sft.data", "")
    assert reason in error and bool(error) is bool(reason)


def test_row_with_functions_in_environment_needs_rewards(tmp_path: Path) -> None:
    """A row that declares functions plays no episode, so the environment gives it no reward."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "a", "problem": "1+1", "answer": 2, "functions": []}\n')
    stage = {"name": "a", "type": "GRPO", "grpo": {"data": str(rows), "steps": 1}}
    spec: dict[str, Any] = {"model": {"source": "-"}, "stages": [stage]}
    messages = []
    for more in (
        {"environments": [{"name": "game"}]},
        {"environments": [{"name": "game"}], "rewards": [{"name": "x"}]},
    ):
        job = AgenticRLJob.model_validate({"metadata": {"name": "x"}, "spec": spec | more})
        messages.append(find_invalid_files(job).get("spec.stages[0].grpo.data", ""))
    assert "row a: functions:" in messages[0] and "set spec.rewards" in messages[0]
    assert messages[1] == ""


def test_resolve_generated_writes_once_per_seed(tmp_path: Path, generated: list[int]) -> None:
    """Generated data is written once per seed."""
    for seed in (1, 1, 2, 1):
        path = resolve("generated://small/data.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=seed)
        assert path.read_text() == str(seed) and path.is_relative_to(tmp_path / "generated")
    assert generated == [1, 2]


def test_resolve_generated_with_unknown_file_raises(tmp_path: Path, generated: list[int]) -> None:
    """A file that the generator does not write is an error with the existing files."""
    with pytest.raises(DataError, match=r"writes no 'other'; it writes: data\.jsonl, half\.jsonl"):
        resolve("generated://small/other", base_dir=tmp_path, state_dir=tmp_path, seed=0)


def test_resolve_generated_by_old_version_regenerates(
    tmp_path: Path, generated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data of an older generator version is replaced."""
    old = resolve("generated://small/data.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=1)
    old.write_text("by version 1")
    _, generate = sources.GENERATORS["small"]
    monkeypatch.setitem(sources.GENERATORS, "small", (2, generate))
    for _ in range(2):
        new = resolve("generated://small/data.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=1)
        assert (new, new.read_text()) == (old, "1")
    assert generated == [1, 1]
    assert [entry.name for entry in (tmp_path / "generated").iterdir()] == ["small-seed-1"]


def test_resolve_generated_after_failure_leaves_no_files(tmp_path: Path, generated: list[int]) -> None:
    """A generator that fails leaves no files."""
    for _ in range(2):
        with pytest.raises(RuntimeError, match="disk full"):
            resolve("generated://small/data.jsonl", base_dir=tmp_path, state_dir=tmp_path, seed=13)
    assert list((tmp_path / "generated").iterdir()) == []
    assert generated == [13, 13]
