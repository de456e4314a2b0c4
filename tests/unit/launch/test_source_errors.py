"""A model that the trainer does not compute is refused before the first pod with an accelerator starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.state_dir import JobState
from rstar2_train.capacity.weight_headers import InvalidWeights, read_tensors
from rstar2_train.data.sources import find_invalid_files
from rstar2_train.launch.model_folder import ModelNotFound, read_config
from rstar2_train.launch.pod.prepare import provide_sources
from rstar2_train.launch.source_errors import find_model_errors

MIXTURE = {"model_type": "phimoe", "num_local_experts": 8}
TRAINS = {"name": "sft", "type": "SFT", "sft": {"data": "{folder}/rows.jsonl"}}
SAMPLES = {"name": "eval", "type": "Evaluate", "evaluate": {"benchmarks": [{"name": "b", "data": "{folder}/b.jsonl"}]}}


def job(folder: Path, config: dict[str, Any], stage: dict[str, Any]) -> AgenticRLJob:
    """Return a job with one stage and a model of this config.json."""
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]} | config))
    stages = json.loads(json.dumps([stage]).replace("{folder}", str(folder)))
    model = {"source": str(folder), "assumeInstructionTuned": True}
    spec = {"model": model, "accelerator": {"vendor": "None"}, "trainer": {"gpusPerReplica": 0}, "stages": stages}
    return AgenticRLJob.model_validate({"metadata": {"name": "j", "uid": "u"}, "spec": spec})


def test_prepare_refuses_a_model_by_its_config(tmp_path: Path) -> None:
    """The prepare program of a cluster refuses what `rstar2 validate` refuses, with its other faulty files."""
    source = job(tmp_path, MIXTURE, TRAINS)
    with pytest.raises(StageFailed, match=r"config.json: num_local_experts: mixtures of") as caught:
        provide_sources(source, source, JobState(tmp_path / "state"))
    assert "spec.model.source: " in str(caught.value)
    assert caught.value.reason == "BadData" and not caught.value.retryable
    assert "spec.stages[0].sft.data" in str(caught.value)


def test_model_that_only_samples_is_not_refused(tmp_path: Path) -> None:
    """The engine of a job without a stage that learns may serve models that the trainer does not compute."""
    assert find_model_errors(job(tmp_path, MIXTURE, SAMPLES)) == {}
    save_file({"w": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    assert find_model_errors(job(tmp_path, MIXTURE, SAMPLES)) == {}


@pytest.mark.parametrize("stage", [SAMPLES, TRAINS])
def test_model_that_engines_compute_otherwise_is_refused(stage: dict[str, Any], tmp_path: Path) -> None:
    """A job that only samples would report another model's answers; SFT without validation has no engine."""
    errors = find_model_errors(job(tmp_path, {"model_type": "qwen3", "attention_bias": True}, stage))
    assert ("attention_bias: True is not supported" in errors.get("spec.model.source", "")) is (stage is SAMPLES)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["model.safetensors"], None),
        (["model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"], None),
        (["other.safetensors"], None),
        (["pytorch_model.bin"], None),
        (["model.safetensors", "consolidated.safetensors"], "consolidated.safetensors"),
        (["other.safetensors", "consolidated-00001.safetensors"], "consolidated-00001.safetensors"),
        (["model.safetensors", "adapter_model.safetensors"], "adapter_model.safetensors"),
        (["model.safetensors", "model-1.safetensors", "model.safetensors.index.json"], "model.safetensors"),
    ],
)
def test_folder_with_other_weights_is_refused(files: list[str], named: str | None, tmp_path: Path) -> None:
    """An engine would read them in place of the model's: Mistral's own format first, else all safetensors."""
    for name in files:
        if name.endswith(".safetensors"):
            save_file({name: np.zeros(1, np.float32)}, tmp_path / name)
        else:
            (tmp_path / name).touch()
    if "model.safetensors.index.json" in files:
        shards = {name: name for name in files if name.startswith("model-")}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    for stage in (SAMPLES, TRAINS) if named else (SAMPLES,):
        errors = find_model_errors(job(tmp_path, {"model_type": "qwen3"}, stage))
        assert (f": {named}: weights other than" in errors["spec.model.source"]) if named else not errors
    if named:
        with pytest.raises(ModelNotFound, match=f": {named}: weights other than"):
            read_config(tmp_path, needs_tokenizer=False)


@pytest.mark.parametrize("stage", [SAMPLES, TRAINS])
def test_adapter_in_place_of_a_model_is_refused(stage: dict[str, Any], tmp_path: Path) -> None:
    """With the config.json of its base, as other programs write it, and without; the remedy is the merge."""
    save_file({"w": np.zeros(1, np.float32)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    remedy = f"it is an adapter; write the whole model with `rstar2 export {tmp_path} FOLDER --merge`, and use FOLDER"
    manifest = job(tmp_path, {"model_type": "qwen3"}, stage)
    assert remedy in find_model_errors(manifest)["spec.model.source"]
    (tmp_path / "config.json").unlink()
    assert remedy in find_invalid_files(manifest)["spec.model.source"]
    with pytest.raises(InvalidWeights, match="it is an adapter"):
        read_tensors(tmp_path)


def test_model_of_an_unknown_class_is_refused(tmp_path: Path) -> None:
    """A class that no test proves is measured; transformers does not know this one."""
    save_file({"w": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    errors = find_model_errors(job(tmp_path, {"model_type": "unheard-of"}, TRAINS))
    assert "unheard-of" in errors["spec.model.source"]


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_folder_with_a_broken_index_is_refused(index: str, tmp_path: Path) -> None:
    """The error has the file and the remedy."""
    (tmp_path / "model.safetensors.index.json").write_text(index)
    errors = find_model_errors(job(tmp_path, {"model_type": "qwen3"}, TRAINS))
    assert "index.json is no index of weight files: " in errors["spec.model.source"]
    assert errors["spec.model.source"].endswith(": download the folder again")
