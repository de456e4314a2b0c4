"""The verification of a published adapter: each file, field and shape that is wrong is refused with its name."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from rstar2_train.weights.adapter_check import AdapterOrder, find_difference, inspect_adapter, is_zero, verify_adapter
from rstar2_train.weights.adapter_folder import CONFIG, TENSORS, tensor_name
from rstar2_train.weights.shard_file import ShardFileInvalid
from tests.support.adapters import change_config, publish, reseal

LAYER = "model.layers.0.mlp.up_proj"
TENSOR_NAMES = tensor_name(LAYER, "lora_A"), tensor_name(LAYER, "lora_B")
A, B = np.ones((8, 6), np.float32), np.ones((4, 8), np.float32)
Damage = Callable[[AdapterOrder], AdapterOrder | None]


@pytest.fixture
def order(tmp_path: Path) -> AdapterOrder:
    """A right version with one layer."""
    tensors = dict(zip(TENSOR_NAMES, (A, B), strict=True))
    return publish(tmp_path, tensors, base=tmp_path, version="rl-step-000003", rank=8, alpha=16)


def test_right_adapter_is_accepted(order: AdapterOrder) -> None:
    """Its layers are returned with the shapes of their weights."""
    assert verify_adapter(order) == {LAYER: (4, 6)}
    assert AdapterOrder.from_json(order.to_json()) == order
    assert not is_zero(Path(order.folder))


def truncate(order: AdapterOrder) -> None:
    path = Path(order.folder) / TENSORS
    path.write_bytes(path.read_bytes()[:-4])


def flip(order: AdapterOrder) -> None:
    path = Path(order.folder) / TENSORS
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def remove(order: AdapterOrder) -> None:
    (Path(order.folder) / TENSORS).unlink()


def tensors(**changed: np.ndarray | None) -> Damage:
    """Return the damage that replaces, adds or removes tensors, under a right manifest."""

    def write(order: AdapterOrder) -> None:
        parts = {"a": A, "b": B} | changed
        names = dict(zip(("a", "b"), TENSOR_NAMES, strict=True)) | {"other": "model.norm.weight"}
        named = {names[key]: part for key, part in parts.items() if part is not None}
        save_file(named, Path(order.folder) / TENSORS)
        reseal(order)

    return write


def config(**fields: object) -> Damage:
    return lambda order: change_config(order, lambda content: content.update(fields))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda order: replace(order, version_id="0" * 12), "has version rl-step-000003 .* expected rl-step-000003"),
        (lambda order: replace(order, version="rl-step-000004"), "expected rl-step-000004"),
        (lambda order: replace(order, folder=order.folder + "x"), r"manifest\.json is missing or damaged"),
        (truncate, r"adapter_model\.safetensors is damaged or truncated"),
        (flip, r"adapter_model\.safetensors is damaged: its SHA-256"),
        (remove, r"adapter_model\.safetensors cannot be read"),
        (lambda order: replace(order, adapter=replace(order.adapter, alpha=32)), "has lora_alpha 16, the job has 32"),
        (config(lora_alpha=32), "has lora_alpha 32, the job has 16"),
        (config(r=4), "has r 4, the job has 8"),
        (config(bias="all"), "has bias 'all'"),
        (config(use_rslora=True), "sets use_rslora"),
        (config(alpha_pattern={"up_proj": 1}), "sets alpha_pattern"),
        (config(target_modules=["q_proj"]), r"has target_modules \['q_proj'\], the job has \["),
        (
            lambda order: replace(order, adapter=replace(order.adapter, base="0" * 64)),
            "has the base .*, the job",
        ),
        (tensors(a=None), "do not have rank 8"),
        (tensors(b=B[:, :4].copy()), "do not have rank 8"),
        (tensors(b=B.astype(np.float16)), "has dtype F16, expected F32"),
        (tensors(other=A), "has 'model.norm.weight', which is not named as peft saves it"),
        (tensors(a=None, b=None), "has no tensors"),
        (tensors(b=B * np.float32("inf")), f"{TENSOR_NAMES[1]} has values that are not finite"),
    ],
)
def test_wrong_adapter_is_refused_with_the_reason(order: AdapterOrder, damage: Damage, reason: str) -> None:
    """Files, versions, rank, scale and tensors."""
    changed = damage(order) or order
    with pytest.raises(ShardFileInvalid) as refusal:
        verify_adapter(changed)
    assert re.search(reason, str(refusal.value)), refusal.value


def inspected(
    folder: Path, *, names: tuple[str, str] = TENSOR_NAMES, more: dict[str, np.ndarray] | None = None, **fields: object
) -> Path:
    """Write an adapter of another program with one layer. `fields`: of its config; `more`: further tensors."""
    folder.mkdir(exist_ok=True)
    save_file(dict(zip(names, (A, B), strict=True)) | (more or {}), folder / TENSORS)
    content = {"peft_type": "LORA", "bias": "none", "r": 8, "lora_alpha": 16, "target_modules": ["up_proj"]} | fields
    (folder / CONFIG).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "fields",
    [
        {"task_type": "CAUSAL_LM", "lora_dropout": 0.1, "peft_version": "0.21.2", "init_lora_weights": "gaussian"},
        {
            "auto_mapping": {"base_model_class": "X"},
            "megatron_core": "megatron.core",
            "loftq_config": {},
            "layers_to_transform": [],
            "later": None,
        },
        {"target_modules": ["mlp.up_proj"]},
        {"target_modules": [LAYER]},
        {"lora_alpha": 0.5},
        {"lora_alpha": -16},
    ],
)
def test_adapter_of_peft_is_accepted(tmp_path: Path, fields: dict[str, object]) -> None:
    """Fields without effect, and the forms of targets that name layers as peft does."""
    assert inspect_adapter(inspected(tmp_path, **fields)).layers == {LAYER: (4, 6)}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        *(
            ({"lora_alpha": value}, "are no scale")
            for value in (float("nan"), float("inf"), 10**400, True, "16", None, 0)
        ),
        *(({"r": value}, "are no scale") for value in (8.0, True, 0, "8")),
        *(
            ({name: value}, f"sets {name}, which is not supported: merge the adapter")
            for name, value in {
                "layers_to_transform": 0,
                "layers_pattern": "layers",
                "exclude_modules": ["q_proj"],
                "use_dora": True,
                "use_rslora": True,
                "fan_in_fan_out": True,
                "modules_to_save": ["lm_head"],
                "rank_pattern": {"up_proj": 4},
                "trainable_token_indices": [1],
                "ensure_weight_tying": True,
                "use_later": True,
                "kasa_config": {},
                "alora_invocation_tokens": [],
            }.items()
        ),
        ({"task_type": "SEQ_CLS"}, "has task_type 'SEQ_CLS', supported: "),
        ({"layers_to_transform": [1]}, "sets layers_to_transform, "),
        ({"init_lora_weights": 1}, "has init_lora_weights 1, supported: "),
        ({"init_lora_weights": "pissa"}, "has init_lora_weights 'pissa', supported: "),
        ({"peft_type": "LOHA"}, "has peft_type 'LOHA', supported: "),
        ({"target_modules": "all-linear"}, "must be a list of names: write the names"),
        ({"target_modules": ["up_proj", "q_proj"]}, "has no tensors of the target 'q_proj'"),
        ({"target_modules": ["down_proj"]}, "has no tensors of the target 'down_proj'|is not a target"),
        ({"names": [name.replace(".weight", ".default.weight") for name in TENSOR_NAMES]}, "not named as peft saves"),
        ({"names": [name.removeprefix("base_model.model.") for name in TENSOR_NAMES]}, "not named as peft saves"),
        ({"more": {"base_model.model.lm_head.base_layer.weight": A}}, "whole copies of layers are not supported"),
        ({"more": {"base_model.model.model.embed_tokens.lora_embedding_A": A}}, "adapters of embeddings"),
        ({"more": {tensor_name("model.layers.1.mlp.up_proj", "lora_A"): A}}, "do not have rank 8"),
    ],
)
def test_adapter_of_another_meaning_is_refused(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    """Only known fields with known values, and tensors as peft names them, have the meaning that is merged."""
    with pytest.raises(ShardFileInvalid) as refusal:
        inspect_adapter(inspected(tmp_path, **fields))
    assert re.search(reason, str(refusal.value)), refusal.value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_adapter_with_values_that_are_not_finite_is_refused(tmp_path: Path, dtype: torch.dtype, value: float) -> None:
    """The tensor is named. The largest and smallest finite values are no fault."""
    bounds = torch.finfo(dtype)
    finite = torch.tensor([bounds.max, bounds.min, bounds.tiny, -0.0], dtype=dtype).repeat(12)
    factors = dict(zip(TENSOR_NAMES, (finite.reshape(8, 6), finite[:32].reshape(4, 8).clone()), strict=True))
    folder = inspected(tmp_path)
    save_torch(factors, folder / TENSORS)
    assert inspect_adapter(folder).layers == {LAYER: (4, 6)}
    factors[TENSOR_NAMES[1]] = factors[TENSOR_NAMES[1]].clone()
    factors[TENSOR_NAMES[1]][3, 7] = value
    save_torch(factors, folder / TENSORS)
    with pytest.raises(ShardFileInvalid, match=f"{re.escape(TENSOR_NAMES[1])} has values that are not finite"):
        inspect_adapter(folder)


@pytest.mark.parametrize("content", ["[]", "{", "3", pytest.param("[" * 100_000, id="deep")])
def test_adapter_with_broken_files_is_refused(tmp_path: Path, content: str) -> None:
    """Damaged configs and tensors, and tensors in the old form, have a remedy."""
    folder = inspected(tmp_path)
    tensors = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(tensors[:-10])
    with pytest.raises(ShardFileInvalid, match="cannot be read"):
        inspect_adapter(folder)
    old, split = folder / "adapter_model.bin", folder / "adapter_model-00001-of-00002.safetensors"
    for before, after in ((folder / TENSORS, old), (old, split)):
        before.rename(after)
        with pytest.raises(ShardFileInvalid, match=f"has {after.name} and no {TENSORS}: save the adapter again"):
            inspect_adapter(folder)
    (folder / CONFIG).write_text(content)
    with pytest.raises(ShardFileInvalid, match="is not a config of peft"):
        inspect_adapter(folder)


def test_adapter_of_another_model_is_found() -> None:
    """A layer that the model lacks, or that has another shape."""
    model = {f"{LAYER}.weight": (4, 6)}
    assert find_difference({LAYER: (4, 6)}, model) == ""
    assert "shape (4, 7), the model has (4, 6)" in find_difference({LAYER: (4, 7)}, model)
    both = model | {"model.layers.1.mlp.up_proj.weight": (4, 6)}
    assert "has the target layer 'model.layers.1" in find_difference({LAYER: (4, 6)}, both, modules=["up_proj"])
    assert "'model.layers.1.mlp.up_proj', which" in find_difference({"model.layers.1.mlp.up_proj": (4, 6)}, model)


def test_adapter_with_zero_b_is_zero(order: AdapterOrder) -> None:
    """The first version of a stage: A is not zero, but the adapter changes nothing."""
    damage = tensors(b=np.zeros_like(B))
    damage(order)
    assert is_zero(Path(order.folder))
