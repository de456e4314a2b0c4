"""Where the sources of a manifest lie inside the pods of a cluster."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import HubSource, resolved_sources, sources, split_hub

STATE = "/state/tiny"


def job(**changes: Any) -> AgenticRLJob:
    spec = {
        "seed": 7,
        "model": {"source": "generated://tiny/base"},
        "stages": [
            {"name": "sft", "type": "SFT", "sft": {"data": "pvc://team-data/sft/v2.jsonl"}},
            {"name": "rl", "type": "GRPO", "grpo": {"data": "/opt/data/rl.jsonl", "steps": 1}},
            {"name": "hard", "type": "Filter", "filter": {"data": "pvc://more/rl.jsonl"}},
            {
                "name": "eval",
                "type": "Evaluate",
                "evaluate": {"benchmarks": [{"name": "a", "data": "hf://datasets/o/n@v1/test/a.parquet"}]},
            },
        ],
    }
    return AgenticRLJob.model_validate({"metadata": {"name": "tiny"}, "spec": spec | changes})


def test_every_source_becomes_a_path_and_claims_are_told() -> None:
    given = job(validation={"data": "pvc://team-data/report.jsonl"}, grpo={"data": "generated://tiny/rl.jsonl"})
    found, claims = resolved_sources(given, STATE)
    assert {source.field: source.value for source in sources(found)} == {
        "spec.model.source": "/state/tiny/generated/tiny-seed-7/base",
        "spec.validation.data": "/pvc/team-data/report.jsonl",
        "spec.grpo.data": "/state/tiny/generated/tiny-seed-7/rl.jsonl",
        "spec.stages[0].sft.data": "/pvc/team-data/sft/v2.jsonl",
        "spec.stages[1].grpo.data": "/opt/data/rl.jsonl",
        "spec.stages[2].filter.data": "/pvc/more/rl.jsonl",
        "spec.stages[3].evaluate.benchmarks[0].data": "/state/tiny/datasets/o--n@v1/test/a.parquet",
    }
    assert claims == ("more", "team-data")
    assert given.spec.model.source == "generated://tiny/base"  # the original is untouched


def test_what_is_located_is_located_again_to_the_same() -> None:
    once, _ = resolved_sources(job(), STATE)
    assert resolved_sources(once, STATE) == (once, ())


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("hf://Qwen/Qwen3-14B-Base", "/state/tiny/models/Qwen--Qwen3-14B-Base"),
        ("hf://Qwen/Qwen3-14B-Base@refs", "/state/tiny/models/Qwen--Qwen3-14B-Base@refs"),
        ("pvc://models/a/b/", "/pvc/models/a/b"),
        ("pvc://models", "/pvc/models"),
        ("pvc://models//etc/passwd", "/pvc/models/etc/passwd"),
        ("/models/base", "/models/base"),
    ],
)
def test_models(value: str, path: str) -> None:
    assert resolved_sources(job(model={"source": value}), STATE)[0].spec.model.source == path


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("models/base", "beginning with '/'"),
        ("~/base", "beginning with '/'"),
        ("s3://bucket/x", "allowed: pvc://CLAIM/PATH"),
        ("hf://Qwen3", "allowed: a model, hf://OWNER/NAME"),
        ("hf://a/b/file.jsonl", "hf://datasets/OWNER/NAME"),
        ("hf://datasets/a/b", "hf://datasets/OWNER/NAME[@REVISION]/FILE"),
        ("hf://datasets/a/b/../../c", "'..' is not allowed"),
        ("pvc://Models/base", "the name of a PersistentVolumeClaim"),
        ("pvc:///base", "the name of a PersistentVolumeClaim"),
        ("pvc://models/../../etc", "'..' is not allowed"),
        ("generated://tiny", "generated://NAME/FILE"),
        ("generated://../x", "generated://NAME/FILE"),
    ],
)
def test_what_cannot_be_located_says_what_is_allowed(value: str, advice: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        resolved_sources(job(model={"source": value}, validation={"data": value}), STATE)
    lines = str(caught.value).splitlines()
    assert [line.split(" is ")[0] for line in lines] == ["error: spec.model.source", "error: spec.validation.data"]
    assert all(repr(value) in line and advice in line for line in lines)


def test_a_hub_source_keeps_its_parts() -> None:
    found = split_hub("hf://datasets/BytedTsinghua-SIA/DAPO-Math-17k/data/dapo.parquet")
    assert found == HubSource("BytedTsinghua-SIA/DAPO-Math-17k", "dataset", None, "data/dapo.parquet")
    assert found.folder(PurePosixPath("/s")) == PurePosixPath("/s/datasets/BytedTsinghua-SIA--DAPO-Math-17k")
