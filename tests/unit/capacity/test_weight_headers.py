"""Weight files that are not one model are refused by their headers, with the file and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rstar2_train.capacity.weight_check import find_weight_faults
from rstar2_train.capacity.weight_headers import InvalidWeights, read_tensors

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def write(folder: Path, file: str, **values: float) -> None:
    save_file({name: np.full((2, 3), value, np.float32) for name, value in values.items()}, folder / file)


def sharded(folder: Path, **changes: str | None) -> None:
    """Write two shards of the tensors a to d, and an index with changes: None omits a tensor."""
    write(folder, FIRST, a=1, b=2)
    write(folder, SECOND, c=3, d=4)
    files = {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND} | changes
    (folder / INDEX).write_text(json.dumps({"weight_map": {name: file for name, file in files.items() if file}}))


def torn(folder: Path, *, kept: int) -> None:
    write(folder, "model.safetensors", a=1)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:kept])


def twice(folder: Path) -> None:
    sharded(folder)
    write(folder, SECOND, c=3, d=4, a=9)


def without_shard(folder: Path) -> None:
    sharded(folder)
    (folder / SECOND).unlink()


def duplicate_name(folder: Path) -> None:
    sharded(folder)
    (folder / INDEX).write_text(f'{{"weight_map": {{"a": "{FIRST}", "a": "{SECOND}"}}}}')


FAULTS: dict[str, Callable[[Path], object]] = {
    r"torn or no safetensors file, with 0 bytes: download": lambda folder: torn(folder, kept=0),
    r"torn or no safetensors file, with 4 bytes": lambda folder: torn(folder, kept=4),
    r"torn or no safetensors file, with 20 bytes": lambda folder: torn(folder, kept=20),
    r"model.safetensors has .* bytes, its header": lambda folder: torn(folder, kept=-4),
    r"no header of safetensors": lambda folder: (folder / "model.safetensors").write_bytes(
        bytes([2]) + b"\0" * 7 + b"[]"
    ),
    r"a is in model-00001.* and in model-00002": twice,
    r"d is in no file by the index, but in model-00002": lambda folder: sharded(folder, d=None),
    r"a is in model-00002.* by the index, but in model-00001": lambda folder: sharded(folder, a=SECOND),
    r"e is in model-00002.* by the index, but in no file": lambda folder: sharded(folder, e=SECOND),
    r"model-00002-of-00002.safetensors cannot be read: No such file": without_shard,
    r"sub/x.safetensors is in another folder": lambda folder: sharded(folder, e="sub/x.safetensors"),
    r"an object has the key 'a' twice": duplicate_name,
    r"names no tensor": lambda folder: (folder / INDEX).write_text('{"weight_map": {}}'),
    r"no safetensors weights .*: save the model": lambda folder: None,
    r"it has pytorch_model.bin: save": lambda folder: (folder / "pytorch_model.bin").touch(),
    r"it has model.gguf": lambda folder: (folder / "model.gguf").touch(),
    r"it has pytorch_model.safetensors": lambda folder: write(folder, "pytorch_model.safetensors", a=1),
    r"it has model-00001": lambda folder: write(folder, FIRST, a=1),
}


@pytest.mark.parametrize("message", FAULTS)
def test_read_tensors_refuses_files_that_disagree(message: str, tmp_path: Path) -> None:
    """Index and headers must name the same tensors in the same files."""
    FAULTS[message](tmp_path)
    with pytest.raises(InvalidWeights, match=message):
        read_tensors(tmp_path)


def test_read_tensors_of_shards_and_of_one_file(tmp_path: Path) -> None:
    """Names, formats, shapes and files."""
    sharded(tmp_path)
    tensors = read_tensors(tmp_path)
    files = {name: tensor.file.name for name, tensor in tensors.items()}
    assert files == {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND}
    assert (tensors["a"].dtype, tensors["a"].shape) == ("F32", (2, 3))
    assert tensors["a"].has_bytes_of(tensors["a"]) and not tensors["a"].has_bytes_of(tensors["c"])


def faults(folder: Path, config: dict[str, object], tensors: dict[str, np.ndarray], *, written: bool = True) -> str:
    save_file(tensors, folder / "model.safetensors")
    return "; ".join(find_weight_faults(folder, config, read_tensors(folder), written=written))


W = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({}, {"w": W}, ""),
        ({"dtype": "float32"}, {"w": W.astype(np.float16)}, ""),
        ({"dtype": "float16"}, {"w": W.astype(np.float16)}, ""),
        ({"dtype": "float16"}, {"w": W.astype(np.float16), "layers.0.rotary_emb.inv_freq": W}, ""),
        ({}, {"w": W, "position_ids": W.astype(np.int64)}, ""),
        (
            {"dtype": "bfloat16"},
            {"w": W},
            "dtype: 'bfloat16', but w is stored as float32, which .* set dtype to 'float32'",
        ),
        ({"torch_dtype": "bfloat16"}, {"w": W.astype(np.float16)}, "set dtype to 'float16'"),
        ({"dtype": "float16"}, {"a": W.astype(np.float16), "w": W}, "set dtype to 'float32'"),
        ({}, {"w": W.astype(np.int8)}, "w is stored as I8, only F32, BF16, F16"),
        ({}, {"w": W.astype(np.float64)}, "w is stored as F64"),
        ({"model_type": "llama"}, {"lm_head.weight": W, "model.embed_tokens.weight": W + 1}, ""),
        ({"tie_word_embeddings": True}, {"lm_head.weight": W, "model.embed_tokens.weight": W}, ""),
        (
            {"tie_word_embeddings": True},
            {"lm_head.weight": W, "model.embed_tokens.weight": W + 1},
            "lm_head.weight has other values than model.embed_tokens.weight .* set it to false",
        ),
        ({"model_type": "gemma"}, {"lm_head.weight": W, "model.embed_tokens.weight": W + 1}, "has other values than"),
        ({"model_type": "llama"}, {"layers.0.mlp.experts.0.up_proj.weight": W}, "experts.0.* mixtures of experts"),
        ({"model_type": "aria_text"}, {"layers.0.mlp.router.weight": W}, "router.weight: mixtures of experts"),
        ({"model_type": "llama"}, {"layers.0.mlp.gate.weight": W}, "mlp.gate.weight: mixtures of experts"),
        ({"model_type": "qwen3_moe"}, {"layers.0.mlp.gate.weight": W}, ""),
        ({"model_type": "llama"}, {"layers.0.mlp.gate_proj.weight": W}, ""),
    ],
)
def test_find_weight_faults_by_the_headers(
    config: dict[str, object], tensors: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    """Formats, tied tensors and experts."""
    actual = faults(tmp_path, config, tensors)
    if message:
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(actual)
    else:
        assert actual == ""


def test_reference_model_may_have_a_wider_format(tmp_path: Path) -> None:
    """Its weights are not written."""
    assert faults(tmp_path, {"dtype": "bfloat16"}, {"w": W}, written=False) == ""


@pytest.mark.parametrize(
    "name", ["adapter_config.json", "hf_quant_config.json", "quant_config.json", "quantize_config.json"]
)
def test_files_that_change_the_model_are_refused(name: str, tmp_path: Path) -> None:
    """Other programs would compute another model with them."""
    (tmp_path / name).write_text("{}")
    assert faults(tmp_path, {}, {"w": W}).startswith(f"{name}: ")
