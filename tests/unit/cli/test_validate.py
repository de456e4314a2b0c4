"""`rstar2 validate` with a model folder at hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rstar2_train.api.state_dir import JobState
from rstar2_train.cli.main import main
from rstar2_train.launch.local import preflight
from tests.support.model_families import write_family
from tests.support.tokenizer_folder import TOKENS, write_tokenizer

TINY = Path(__file__).parents[3] / "examples" / "tiny.yaml"
QWEN3 = {"model_type": "qwen3"}


def write_job(folder: Path, config: dict[str, Any]) -> Path:
    """Write a job that trains a model folder with this config.json; of a Qwen3, with its weights."""
    (folder / "model").mkdir()
    if config == QWEN3:
        write_family("Qwen3", folder / "model", vocab_size=TOKENS, eos_token_id=TOKENS - 1)
    else:
        (folder / "model" / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder / "model")
    manifest = yaml.safe_load(TINY.read_text().replace("generated://tiny/", "generated://tiny-smoke/"))
    manifest["spec"]["model"]["source"] = "./model"
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(manifest))
    return file


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_command_refuses_a_model_by_its_config(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that the trainer does not compute exactly is refused before anything starts."""
    monkeypatch.chdir(tmp_path)
    file = write_job(tmp_path, {"model_type": "phimoe", "num_local_experts": 8})
    assert main([command, str(file)]) != 0
    printed = capsys.readouterr()
    assert "spec.model.source" in printed.err + printed.out
    assert "num_local_experts: mixtures of experts of model_type" in printed.err + printed.out


def test_preflight_refuses_a_model_by_its_config(tmp_path: Path) -> None:
    """`rstar2 run` refuses it too, with its other missing files."""
    file = write_job(tmp_path, {"model_type": "phimoe", "num_local_experts": 8})
    job, _ = preflight.read_job(file)
    with pytest.raises(preflight.PreflightError, match=r"spec.model.source: .*config.json: num_local_experts: "):
        preflight.resolve_sources(job, manifest=file, state=JobState(tmp_path / "state"))


def test_validate_reads_a_link_by_its_own_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the Hub's cache is a link with a suffix; its target has none."""
    (tmp_path / "blob").write_text('{"problem": "p"}\n')
    (tmp_path / "report.jsonl").symlink_to("blob")
    manifest = yaml.safe_load(TINY.read_text())
    manifest["spec"]["validation"]["data"] = "report.jsonl"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    assert main(["validate", str(tmp_path / "job.yaml")]) == 1
    assert "report.jsonl:1: answer must be a non-empty text" in capsys.readouterr().err
    for data, text in (
        ("~no-user/a", "error: spec.validation.data: ~no-user/a: no such"),
        ("$A/a", "so it was not read"),
    ):
        manifest["spec"]["validation"]["data"] = data
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
        assert main(["validate", str(tmp_path / "job.yaml")]) == (1 if "error" in text else 0)
        assert text in "".join(capsys.readouterr())


def test_validate_accepts_a_proven_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A family of docs/models.md needs no measurement."""
    assert main(["validate", str(write_job(tmp_path, QWEN3))]) == 0
    assert ": valid, " in capsys.readouterr().out


@pytest.mark.parametrize("local", [False, True])
def test_validate_needs_no_trainer(
    local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An installation without the trainer's packages checks the manifest, and reports which check is missing."""
    file = write_job(tmp_path, QWEN3)
    if not local:
        (tmp_path / "model").rename(tmp_path / "other")
    for name in ("data.known_answers", "data.sources", "rollout.template_check", "trainer.self_check"):
        monkeypatch.setitem(sys.modules, f"rstar2_train.{name}", None)
    assert main(["validate", str(file)]) == 0
    printed = capsys.readouterr().out
    assert ": valid, " in printed and ("were not read" in printed) is local
    if local:  # the model's config.json is still checked
        (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "phimoe", "num_local_experts": 8}))
        assert main(["validate", str(file)]) != 0
        assert "mixtures of experts" in capsys.readouterr().err


def test_validate_tries_the_bucket_of_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operations that a run needs are tried before it starts; without credentials only a note is printed."""
    manifest = yaml.safe_load(TINY.read_text())
    file = tmp_path / "job.yaml"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "blocked").write_text("a file, so no folder")
    for url, code, text in (
        (f"file://{tmp_path}/runs", 0, ": valid, "),
        (f"file://{tmp_path}/blocked", 1, "error: spec.storage.url: "),
        ("s3://team/runs", 0, "the environment has no credentials"),
    ):
        manifest["spec"]["storage"] = {"url": url}
        file.write_text(yaml.safe_dump(manifest))
        assert main(["validate", str(file)]) == code
        printed = capsys.readouterr()
        assert text in printed.out + printed.err
        assert "in a cluster" not in printed.out  # it may run there too


def test_validate_tries_the_server_of_a_teacher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that only the cluster reaches is a warning; without the model's tokenizer it is not asked."""
    file = write_job(tmp_path, QWEN3)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["grpo"]["objective"] = {"type": "Distillation", "teacher": {"endpoint": "http://127.0.0.1:1"}}
    field = "spec.grpo.objective.teacher.endpoint"
    for source, printed in (
        ("pvc://models/base", f"note: {field} was not tried, because the tokenizer of the model"),
        ("./model", f"warning: {field}: the server does not answer from this machine: "),
    ):
        manifest["spec"]["model"]["source"] = source
        file.write_text(yaml.safe_dump(manifest))
        assert main(["validate", str(file)]) == 0
        assert printed in capsys.readouterr().out
    job, _ = preflight.read_job(file)
    job.spec.model.source = str(tmp_path / "model")
    assert "Cannot connect" in preflight._try_teachers(job)[field]
