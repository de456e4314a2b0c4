"""Which model folders can be the teacher or the reference of a job, before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import TeacherSpec
from rstar2_train.api.validation import check
from rstar2_train.capacity.reference_model import find_reference_errors
from tests.support.good_manifest import changed

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
DISTILLATION = "spec.stages[1].grpo.objective.teacher.source"


def job_with(folder: Path, **grpo: object) -> AgenticRLJob:
    """Return a job whose model is FOLDER/model."""
    data = changed("spec.stages.1.grpo", {"data": "p.jsonl", "steps": 1, **grpo})
    data["spec"]["model"]["source"] = str(folder / "model")
    job, issues = check(data)
    assert job is not None, issues
    return job


def write(folder: Path, *, tokenizer: str | None = "{}", **changes: int) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(tokenizer)
    return str(folder)


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({}, ""),
        ({"tokenizer": "{ }"}, "its tokenizer.json has SHA-256"),
        ({"tokenizer": None}, "its tokenizer.json has SHA-256 none: no such file"),
        ({"num_hidden_layers": 3, "hidden_size": 64, "vocab_size": 65, "max_position_embeddings": 100_000}, ""),
        ({"vocab_size": 63}, "its vocab_size is 63, that of the model 64"),
        ({"max_position_embeddings": 64}, "its limit is 64 tokens, a sequence of the job may have"),
        ({"logits_scaling": 3}, "logits_scaling: 3 changes the logits"),
    ],
)
def test_reference_model_has_the_tokens_of_the_model(tmp_path: Path, other: dict[str, Any], error: str) -> None:
    """The probabilities of the same tokens are compared: the shape may be another one, the tokenizer may not."""
    write(tmp_path / "model")
    source = write(tmp_path / "other", **other)
    jobs = {
        DISTILLATION: job_with(tmp_path, objective={"type": "Distillation", "teacher": {"source": source}}),
        "spec.stages[1].grpo.referenceKl.source": job_with(
            tmp_path, referenceKl={"weight": 0.1, "model": "Source", "source": source}
        ),
    }
    for field, job in jobs.items():
        errors = find_reference_errors(job)
        assert list(errors) == ([field] if error else [])
        assert error in errors.get(field, "") and all(source in text for text in errors.values())


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({}, ""),
        ({"tokenizer": "{ }"}, "its tokenizer.json has SHA-256"),
        ({"logits_scaling": 3}, ""),
        ({"max_position_embeddings": 2560}, "its limit is 2,560 tokens, a sequence of the job may have 2,561"),
    ],
)
def test_reference_model_of_engines_needs_only_them(tmp_path: Path, other: dict[str, Any], error: str) -> None:
    """Engines compute a model that the trainer does not; a request has one token more than the sequence."""
    write(tmp_path / "model")
    source = write(tmp_path / "other", **other)
    objective = {"type": "Distillation", "teacher": {"source": source}}
    job = job_with(tmp_path, maxPromptTokens=512, maxResponseTokens=2048, objective=objective)
    job.spec.teacher = TeacherSpec()
    errors = find_reference_errors(job)
    assert list(errors) == ([DISTILLATION] if error else []) and error in errors.get(DISTILLATION, "")


def test_reference_model_needs_the_length_of_its_own_stages(tmp_path: Path) -> None:
    """Another GRPO stage may have longer sequences."""
    write(tmp_path / "model")
    source = write(tmp_path / "other", max_position_embeddings=4096)
    job = job_with(tmp_path, maxResponseTokens=2000, objective={"type": "Distillation", "teacher": {"source": source}})
    job.spec.grpo.max_response_tokens = 16384
    assert find_reference_errors(job) == {}
    assert job.spec.stages[1].grpo is not None
    job.spec.stages[1].grpo.max_response_tokens = None
    assert "a sequence of the job may have 18,432" in find_reference_errors(job)[DISTILLATION]


def test_reference_model_without_a_folder_is_no_error_here(tmp_path: Path) -> None:
    """A missing folder is an error of the model's own check."""
    write(tmp_path / "model")
    job = job_with(tmp_path, objective={"type": "Distillation", "teacher": {"source": str(tmp_path / "none")}})
    assert find_reference_errors(job) == {}
