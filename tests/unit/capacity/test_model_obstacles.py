"""The reasons of a whole job against its model: the lengths of all its stages, and each reason once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.capacity.job_model import model_notes, model_obstacles, weight_obstacles

LONGROPE = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
}
GRPO = {"name": "rl", "type": "GRPO", "grpo": {"data": "d", "maxPromptTokens": 40, "maxResponseTokens": 60}}
SFT = {"name": "sft", "type": "SFT", "sft": {"data": "d", "maxTokens": 100}}


def evaluate(tokens: int) -> dict[str, Any]:
    """Return a stage that samples responses of this length."""
    return {
        "name": "eval",
        "type": "Evaluate",
        "evaluate": {"benchmarks": [{"name": "b", "data": "d"}], "sampling": {"maxResponseTokens": tokens}},
    }


def make_job(folder: Path, stages: list[dict[str, Any]], **spec: Any) -> AgenticRLJob:
    fields = {
        "model": {"source": str(folder), "assumeInstructionTuned": True},
        "accelerator": {"vendor": "None"},
        "trainer": {"gpusPerReplica": 0},
        "grpo": {"maxPromptTokens": 40},
        "stages": stages,
        **spec,
    }
    return AgenticRLJob.model_validate({"metadata": {"name": "j", "uid": "u"}, "spec": fields})


def obstacles(folder: Path, config: dict[str, Any], stages: list[dict[str, Any]], **spec: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return "; ".join(model_obstacles(make_job(folder, stages, **spec), folder))


VALIDATION = {"validation": {"data": "d", "sampling": {"maxResponseTokens": 2000}}}


@pytest.mark.parametrize(
    ("stages", "spec", "refused"),
    [
        ([GRPO], {}, False),
        ([SFT], {}, False),
        ([GRPO, evaluate(60)], {}, False),
        ([GRPO, evaluate(2000)], {}, True),
        ([SFT, evaluate(2000)], {}, True),
        ([SFT], VALIDATION, True),
        ([GRPO], VALIDATION, True),
    ],
)
def test_longrope_is_judged_by_the_longest_sequence_of_the_job(
    stages: list[dict[str, Any]], spec: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    """An engine that allows longer sequences has other frequencies for the short ones of training, too."""
    text = obstacles(tmp_path, LONGROPE, stages, **spec)
    assert ("rope_type longrope: an engine that allows more than 128 tokens" in text) is refused, text
    assert refused or text == ""


@pytest.mark.parametrize(("tokens", "refused"), [(64, False), (65, True)])
def test_conversation_beyond_the_positions_is_refused(tokens: int, refused: bool, tmp_path: Path) -> None:
    """No engine limits the sequences of SFT."""
    stage = {**SFT, "sft": {"data": "d", "maxTokens": tokens}}
    text = obstacles(tmp_path, {"model_type": "llama", "max_position_embeddings": 64}, [stage])
    assert ("the model has 64 positions, spec.stages[0].sft.maxTokens is 65: set maxTokens to 64" in text) is refused


@pytest.mark.parametrize(
    ("stage", "note"),
    [
        (SFT, "may have 100 tokens: set maxTokens"),
        ({**SFT, "sft": {"data": "d"}}, "may have 32,768 tokens: set maxTokens"),
        (GRPO, "may have 100 tokens: engines stop there"),
        (evaluate(60), "may have 100 tokens: engines stop there"),
        (evaluate(24), ""),
    ],
)
def test_sequence_beyond_the_positions_is_noted(stage: dict[str, Any], note: str, tmp_path: Path) -> None:
    """`rstar2 validate` prints it with the fields that training leaves out."""
    config = {"model_type": "llama", "max_position_embeddings": 64, "attention_dropout": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    notes = model_notes(make_job(tmp_path, [stage]), tmp_path)
    assert notes[0].startswith("attention_dropout: ") and len(notes) == 1 + (note != "")
    assert note in notes[-1]


def test_replay_of_experts_that_a_model_lacks_is_noted(tmp_path: Path) -> None:
    """A setting of mixtures has no effect for a dense model."""
    for config, dense in (({"model_type": "llama"}, True), ({"model_type": "olmoe"}, False)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        for replay in (True, False):
            notes = model_notes(make_job(tmp_path, [SFT, GRPO], grpo={"routerReplay": replay}), tmp_path)
            assert any("routerReplay: false has no effect" in note for note in notes) == (dense and not replay)


def test_reason_of_trainer_and_engines_is_given_once(tmp_path: Path) -> None:
    """Both refuse a field of the rotary embedding that only one of them reads."""
    config = {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0, "alpha": 1.0}}
    assert obstacles(tmp_path, config, [GRPO]).count("alpha of the rotary embedding") == 1


@pytest.mark.parametrize("classes", [{}, {"architectures": None}, {"architectures": []}])
@pytest.mark.parametrize(("stage", "is_refused"), [(GRPO, True), (SFT, False), (evaluate(60), True)])
def test_engines_need_the_class_of_the_model(
    classes: dict[str, Any], stage: dict[str, Any], is_refused: bool, tmp_path: Path
) -> None:
    """Without one vLLM takes the base class, which samples no text."""
    text = obstacles(tmp_path, {"model_type": "llama"} | classes, [stage])
    assert ("architectures: none: vLLM" in text and "['LlamaForCausalLM']" in text) is is_refused


def test_config_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """`rstar2 plan` and `validate` give the reason, not a traceback."""
    assert obstacles(tmp_path, {"layer_types": 3}, [GRPO]) == "layer_types: 3 is not a list of texts: correct it"


@pytest.mark.parametrize("stage", [GRPO, evaluate(60)])
@pytest.mark.parametrize("other", ["adapter_model.safetensors", "model-00001-of-00002.safetensors"])
def test_weights_of_another_model_in_the_folder_are_refused(other: str, stage: dict[str, Any], tmp_path: Path) -> None:
    """`rstar2 plan` refuses the folder as `validate` and `run` do."""
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert weight_obstacles(make_job(tmp_path, [stage]), tmp_path) == []
    (tmp_path / other).write_bytes(b"")
    (refusal,) = weight_obstacles(make_job(tmp_path, [stage]), tmp_path)
    assert f"{other}: weights other than those of model.safetensors" in refusal
