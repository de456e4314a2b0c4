"""Paths of a manifest's sources inside the pods of a cluster."""

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


def test_sources_every_scheme_becomes_a_path() -> None:
    """Every source of a job becomes a path in the pods; the claims of the paths are returned, sorted."""
    original = job(validation={"data": "pvc://team-data/report.jsonl"}, grpo={"data": "generated://tiny/rl.jsonl"})
    resolved, claims = resolved_sources(original, STATE)
    assert {source.field: source.value for source in sources(resolved)} == {
        "spec.model.source": "/state/tiny/generated/tiny-seed-7/base",
        "spec.validation.data": "/pvc/team-data/report.jsonl",
        "spec.grpo.data": "/state/tiny/generated/tiny-seed-7/rl.jsonl",
        "spec.stages[0].sft.data": "/pvc/team-data/sft/v2.jsonl",
        "spec.stages[1].grpo.data": "/opt/data/rl.jsonl",
        "spec.stages[2].filter.data": "/pvc/more/rl.jsonl",
        "spec.stages[3].evaluate.benchmarks[0].data": "/state/tiny/datasets/o--n@v1/test/a.parquet",
    }
    assert claims == ("more", "team-data")
    assert original.spec.model.source == "generated://tiny/base"


def test_sources_resolved_job_stays_unchanged() -> None:
    """A resolved job resolves to itself."""
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
        ("s3://team-models/qwen3/base/", "/state/tiny/buckets/s3/team-models/qwen3/base"),
        ("gs://team.models/x=1/a.jsonl", "/state/tiny/buckets/gs/team.models/x=1/a.jsonl"),
    ],
)
def test_sources_model_value_gives_its_path(value: str, path: str) -> None:
    """Each form of a model source has its path."""
    assert resolved_sources(job(model={"source": value}), STATE)[0].spec.model.source == path


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("models/base", "absolute path inside the image"),
        ("~/base", "absolute path inside the image"),
        ("ftp://bucket/x", "allowed: pvc://CLAIM/PATH"),
        ("s3://bucket", "must be s3://BUCKET/KEY"),
        ("s3://bucket/", "must be s3://BUCKET/KEY"),
        ("s3://bucket/a/../b", "without '..'"),
        ("s3://bucket/a//b", "between single '/'"),
        ("s3://Bucket/a", "must be s3://BUCKET/KEY"),
        ("gs://key:secret@bucket/a", "must be s3://BUCKET/KEY"),
        ("az://b/a", "must be s3://BUCKET/KEY"),
        ("s3://bucket/a?versionId=1", "letters, digits and"),
        ("hf://Qwen3", "allowed: a model, hf://OWNER/NAME"),
        ("hf://a/b/file.jsonl", "hf://datasets/OWNER/NAME"),
        ("hf://datasets/a/b", "hf://datasets/OWNER/NAME[@REVISION]/FILE"),
        ("hf://datasets/a/b/../../c", "must not contain '..'"),
        ("pvc://Models/base", "must name a PersistentVolumeClaim"),
        ("pvc:///base", "must name a PersistentVolumeClaim"),
        ("pvc://models/../../etc", "must not contain '..'"),
        ("generated://tiny", "generated://NAME/FILE"),
        ("generated://../x", "generated://NAME/FILE"),
        ("", "must be a path or a URL, without NUL characters"),
        ("/data/a\0.jsonl", "must be a path or a URL, without NUL characters"),
    ],
)
def test_sources_invalid_value_names_the_allowed_form(value: str, advice: str) -> None:
    """A value without a path is an error with the field, the value and the allowed form."""
    with pytest.raises(InvalidJob) as caught:
        resolved_sources(job(model={"source": value}, validation={"data": value}), STATE)
    lines = str(caught.value).splitlines()
    assert [line.split(" is ")[0] for line in lines] == ["error: spec.model.source", "error: spec.validation.data"]
    assert all(repr(value) in line and advice in line for line in lines)


def test_sources_hub_value_has_repository_and_file() -> None:
    """A hf:// value is split into kind, repository, revision and file."""
    source = split_hub("hf://datasets/BytedTsinghua-SIA/DAPO-Math-17k/data/dapo.parquet")
    assert source == HubSource("BytedTsinghua-SIA/DAPO-Math-17k", "dataset", None, "data/dapo.parquet")
    assert source.folder(PurePosixPath("/s")) == PurePosixPath("/s/datasets/BytedTsinghua-SIA--DAPO-Math-17k")


def test_sources_stdio_server_is_rejected_in_a_cluster() -> None:
    """A server on stdio would be a child of the trainer; the error names the remedy."""
    tools = [{"name": "add", "server": "kit"}]
    manifest = job(tools=tools, mcpServers=[{"name": "kit", "command": ["python", "kit.py"]}])
    with pytest.raises(InvalidJob, match=r"spec\.mcpServers\[0\]\.command.*is only for `rstar2 run`.*set url"):
        resolved_sources(manifest, STATE)
    assert resolved_sources(job(tools=tools, mcpServers=[{"name": "kit", "url": "http://kit:8000/mcp"}]), STATE)


def test_sources_environment_needs_an_image_in_a_cluster() -> None:
    """A cluster starts the servers of an environment from an image."""
    with pytest.raises(InvalidJob, match=r"spec\.environments\[0\]\.image.*is required in a cluster"):
        resolved_sources(job(environments=[{"name": "game", "command": ["serve"]}]), STATE)
    for spec in ({"image": "games:1"}, {"url": "http://games:8000"}):
        assert resolved_sources(job(environments=[{"name": "game", **spec}]), STATE)


def test_sources_agent_in_a_cluster_needs_an_image() -> None:
    """One machine runs the program of an agent itself; a cluster needs its image."""
    agent = {"command": ["python", "agent.py"]}
    with pytest.raises(InvalidJob, match=r"spec\.agent\.image.*is required in a cluster"):
        resolved_sources(job(agent=agent), STATE)
    assert resolved_sources(job(agent=agent | {"image": "agents:1"}), STATE)
