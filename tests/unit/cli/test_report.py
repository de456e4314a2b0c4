"""`rstar2 report` of a job whose state is in a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import load
from rstar2_train.cli.main import main
from rstar2_train.launch.local.upload import fetch_records, publish_state
from tests.support.good_manifest import changed


def test_report_of_a_manifest_reads_its_bucket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It downloads the records and no model, and changes no state folder; without a URL the error names the field."""
    data, state = changed("spec.storage", {"url": f"file://{tmp_path}/runs"}), JobState(tmp_path / "state")
    for folder in (state.stage("sft").model, state.stage("sft").checkpoints / "step-000001"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    state.job_file.write_text(json.dumps(data))
    (state.stage("sft").root / "attempt.json").write_text('{"attempt": 3}')
    (state.stage("sft").root / "kept.jsonl").write_text("large")
    publish_state(load(data), state)
    (tmp_path / "job.json").write_text(json.dumps(data))
    (tmp_path / "local.json").write_text(json.dumps(changed("spec.storage", {})))

    files = sorted(tmp_path.rglob("*"))
    assert main(["report", str(tmp_path / "job.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["attempts"] == 3
    assert sorted(tmp_path.rglob("*")) == files
    assert main(["report", str(tmp_path / "local.json")]) == 1
    assert "spec.storage.url is not set" in capsys.readouterr().err

    fetch_records(load(data), tmp_path / "copy")
    copied = {
        path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*") if path.is_file()
    }
    assert copied == {"job.json", "stages/sft/attempt.json"}


EVALUATION = '{"problems": 4, "samples": 8, "pass_at_1": %s, "pass_at_1_se": null, "stage": "sft", "temperature": 1, \
"max_response_tokens": 9, "max_turns": 2, "seconds": 1}'


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("job.json", '{"apiVersion', "job.json is damaged, or of another version of rstar2: Invalid JSON"),
        ("job.json", "[]", "Input should be an object"),
        ("job.json", '{"newField": 1}', "install the version that wrote it."),
        ("seconds.json", "", "seconds.json is damaged"),
        ("seconds.json", "NaN", "NaN is no duration in seconds"),
        ("stages/sft/evaluation.json", '{"stage": "sft", ', "evaluation.json is damaged"),
        ("stages/sft/evaluation.json", EVALUATION % "NaN", "pass_at_1: Input should be a finite number"),
        ("stages/sft/evaluation.json", EVALUATION.replace("seconds", "minutes") % 1, "seconds: Field required"),
        ("stages/sft/attempt.json", "{}", "attempt: Field required"),
        ("stages/sft/outcome.json", "\xff", "outcome.json is damaged, or of another version of rstar2: 'utf-8' codec"),
        ("stages/sft/outcome.json/file", "", "outcome.json: Is a directory. Restore the file"),
        ("stages", "", "evaluation.json: Not a directory. Restore the file"),
    ],
)
def test_report_of_damaged_state_names_the_file(
    file: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A torn file, a figure that is no number and a file of another version end the command without a traceback."""
    path = tmp_path / "job" / file
    path.parent.mkdir(parents=True)
    if file != "job.json":
        (tmp_path / "job" / "job.json").write_text(json.dumps(changed("spec.storage", {})))
    path.write_bytes(text.encode("latin-1"))
    for option in ([], ["--json"]):
        assert main(["report", "job", "--state", str(tmp_path), *option]) == 1
        printed = capsys.readouterr()
        assert message in printed.err and str(tmp_path / "job") in printed.err and not printed.out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["analyse", "MANIFEST"], "first trajectories after SFT"),
        (["verify", "--job", "MANIFEST", "--problem", "p"], "no stored rollout of problem 'p'"),
        (["export", "MANIFEST/sft", "out"], "no model of stage 'sft'. Stages with a model: rl"),
        (["serve", "MANIFEST"], "stages/rl/model is not a model in the Hugging Face format"),
        (
            ["eval", "--model", "MANIFEST", "--benchmark", "b.jsonl"],
            "stages/rl/model is not a model in the Hugging Face",
        ),
    ],
)
def test_command_of_a_manifest_reads_its_bucket(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a fetch of the user it comes as far as the state that was published."""
    monkeypatch.chdir(tmp_path)
    data, state = changed("spec.storage", {"url": f"file://{tmp_path}/runs"}), JobState(tmp_path / "state")
    model = state.stage("rl").model
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    state.job_file.write_text(json.dumps(data))
    publish_state(load(data), state)
    (tmp_path / "job.yaml").write_text(json.dumps(data))
    (tmp_path / "b.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}')
    assert main([word.replace("MANIFEST", "job.yaml") for word in argv]) == 1
    assert message in capsys.readouterr().err
    assert (tmp_path / ".rstar2" / load(data).metadata.name / "stages/rl/model/config.json").exists()
