"""An adapter in place of a model: the exact merged weights, the exported files, and the bases that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from rstar2_train.cli.main import main
from rstar2_train.launch.adapter_model import base_of, whole_model
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.launch.model_folder import ModelNotFound
from rstar2_train.serving.model import find
from rstar2_train.weights.adapter_folder import (
    CONFIG,
    TENSORS,
    AdapterIdentity,
    folder_digest,
    tensor_name,
    write_adapter,
)

LAYERS = {f"model.layers.{number}.mlp.up_proj": (4, 6) for number in range(2)}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write_base(folder: Path, *, seed: int, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a model folder of two files with one layer each."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    weight_map: dict[str, str] = {}
    for file, (layer, shape) in zip(SHARDS, LAYERS.items(), strict=True):
        tensors = {
            f"{layer}.weight": torch.randn(shape, generator=generator).to(dtype),
            f"{layer}.bias": torch.randn(shape[0], generator=generator).to(dtype),
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64, "dtype": "bfloat16"}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def write_random_adapter(
    folder: Path, base: Path, *, layers: dict[str, tuple[int, int]] = LAYERS, seed: int = 0
) -> Path:
    """Write an adapter of rank 8 and alpha 4."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    tensors = {}
    for layer, (rows, columns) in layers.items():
        tensors[tensor_name(layer, "lora_A")] = draw.normal(size=(8, columns)).astype(np.float32)
        tensors[tensor_name(layer, "lora_B")] = draw.normal(size=(rows, 8)).astype(np.float32)
    identity = AdapterIdentity(base=folder_digest(base), rank=8, alpha=4, modules=("up_proj",))
    write_adapter(folder, tensors, identity, base=base)
    return folder


def remove_digest(adapter: Path) -> None:
    """Write the tensors of an adapter as other programs do."""
    save_file(load_file(adapter / TENSORS), adapter / TENSORS)


def write_foreign_adapter(folder: Path, base: Path) -> Path:
    """Write an adapter of another program, which names no base and has no digest."""
    write_random_adapter(folder, base)
    remove_digest(folder)
    config = json.loads((folder / CONFIG).read_text()) | {"base_model_name_or_path": None}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base", seed=0)


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    return write_random_adapter(tmp_path / "mine", base)


def merged_in_float32(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    """Return the expected tensors of the merged folder."""
    factors = load_file(adapter / TENSORS)
    expected = {name: tensor for file in SHARDS for name, tensor in load_file(base / file).items()}
    for layer in LAYERS:
        product = factors[tensor_name(layer, "lora_B")] @ factors[tensor_name(layer, "lora_A")]
        weight = expected[f"{layer}.weight"]
        expected[f"{layer}.weight"] = (weight.float() + 0.5 * product).to(weight.dtype)
    return expected


def export(*arguments: str | Path) -> int:
    return main(["export", *map(str, arguments)])


def test_adapter_with_the_config_of_its_base_is_merged(tmp_path: Path, base: Path, adapter: Path) -> None:
    """As other programs write it. Next to the weights of a model it is refused: which of both is meant is unknown."""
    expected = merged_in_float32(base, adapter)
    (adapter / "config.json").write_bytes((base / "config.json").read_bytes())
    assert export(adapter, tmp_path / "out", "--merge") == 0
    assert all(torch.equal(weight, expected[name]) for name, weight in load_file(tmp_path / "out" / SHARDS[0]).items())
    for name in (CONFIG, TENSORS):
        (base / name).write_bytes((adapter / name).read_bytes())
    for options in (["--merge"], []):
        assert export(base, tmp_path / "both", *options) == 1
    with pytest.raises(PreflightError, match="has the weights of a model and adapter_config"):
        whole_model(base, base=None, jobs=tmp_path / "jobs")


@pytest.mark.parametrize("foreign", [False, True])
def test_adapter_is_merged_exactly_and_once(tmp_path: Path, base: Path, adapter: Path, foreign: bool) -> None:
    """Served, and exported with --merge: in float32, rounded once; also that of another program, without a digest."""
    if foreign:
        remove_digest(adapter)
    jobs, notes = tmp_path / "jobs", list[str]()
    served = find(str(adapter), jobs=jobs, notify=notes.append)
    assert (served.name, len(notes)) == ("mine", 1)
    assert export(adapter, tmp_path / "out", "--merge") == 0
    for folder in (served.folder, tmp_path / "out"):
        actual = {name: tensor for file in SHARDS for name, tensor in load_file(folder / file).items()}
        expected = merged_in_float32(base, adapter)
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
        for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
            assert (folder / name).read_bytes() == (base / name).read_bytes()
    again = whole_model(adapter, base=None, jobs=jobs, notify=notes.append)
    assert (again, len(notes)) == (served.folder, 1), "the merged model is used again"
    (adapter / TENSORS).write_bytes((write_random_adapter(tmp_path / "b", base, seed=1) / TENSORS).read_bytes())
    assert whole_model(adapter, base=None, jobs=jobs) != served.folder, "another adapter in the same folder"


def test_exported_adapter_names_its_base(tmp_path: Path, base: Path, adapter: Path) -> None:
    """The tensors are copied; the config names the folder of the base, or the given name."""
    assert export(adapter, tmp_path / "a") == 0
    assert export(adapter, tmp_path / "b", "--base-name", "owner/base") == 0
    for folder, name in ((tmp_path / "a", str(base)), (tmp_path / "b", "owner/base")):
        assert (folder / TENSORS).read_bytes() == (adapter / TENSORS).read_bytes()
        config = json.loads((folder / CONFIG).read_text())
        assert config == json.loads((adapter / CONFIG).read_text()) | {"base_model_name_or_path": name}


def test_export_of_a_stage_copies_model_or_adapter(tmp_path: Path, base: Path) -> None:
    """A merged model folder has both; a model without an adapter can only be copied."""
    write_random_adapter(base / "adapter", base)
    assert export(base, tmp_path / "model", "--merge") == 0
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == sorted(
        ["config.json", "tokenizer.json", "model.safetensors.index.json", *SHARDS]
    )
    assert export(base, tmp_path / "adapter") == 0
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [CONFIG, TENSORS]


def test_merge_keeps_the_ends_of_turns(tmp_path: Path, base: Path, adapter: Path) -> None:
    """The exported adapter of a stage has its stop tokens, and each merged model too; the base's other files stay."""
    (base / "generation_config.json").write_text('{"eos_token_id": 2}')
    plain = whole_model(adapter, base=None, jobs=tmp_path / "jobs")
    assert (plain / "generation_config.json").read_text() == '{"eos_token_id": 2}'
    (adapter / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert export(adapter, tmp_path / "alone") == 0
    assert export(tmp_path / "alone", tmp_path / "model", "--merge") == 0
    for folder in (tmp_path / "model", whole_model(adapter, base=None, jobs=tmp_path / "jobs")):
        assert (folder / "generation_config.json").read_text() == '{"eos_token_id": [2, 5]}'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{mine}", "{out}", "--merge", "--base", "{other}"], "was trained on other weights than those of"),
        (["{mine}", "{out}", "--merge", "--base", "{missing}"], "with --base FOLDER"),
        (["{wrong}", "{out}", "--merge"], "has layer 'model.layers.7.mlp.up_proj', which the model does not have"),
        (["{base}", "{out}"], "has no adapter: it was trained as a whole"),
        (["{base}", "{out}", "--merge", "--base", "{other}"], "--base has no effect"),
        (["{mine}", "{base}"], "exists already"),
        (["{mine}", "{out}", "--merge", "--base-name", "x"], "--base-name has no effect"),
        (["{mine}", "{out}", "--base", "{other}"], "was trained on other weights than those of"),
        (
            ["{foreign}", "{out}", "--base", "{base}"],
            "has layer 'model.layers.7.mlp.up_proj', which the model does not",
        ),
        (["{mine}", "{out}", "--base", "{base}", "--base-name", "x"], "--base has no effect with --base-name"),
        (["{nameless}", "{out}"], "names no base: pass the folder of its base with --base FOLDER"),
        (["{nameless}", "{out}", "--merge", "--base", "{quantised}"], "has quantised weights"),
        (["{missing}", "{out}"], "no such model"),
    ],
)
def test_export_refuses(
    tmp_path: Path, base: Path, adapter: Path, arguments: list[str], message: str, capsys: Any
) -> None:
    """The message names the fault, and no folder appears."""
    write_base(tmp_path / "other", seed=1)
    write_random_adapter(tmp_path / "wrong", base, layers={"model.layers.7.mlp.up_proj": (4, 6)})
    write_foreign_adapter(tmp_path / "nameless", base)
    quantised = write_base(tmp_path / "quantised", seed=0) / "config.json"
    quantised.write_text(json.dumps(json.loads(quantised.read_text()) | {"quantization_config": {"bits": 8}}))
    write_random_adapter(tmp_path / "foreign", base, layers={"model.layers.7.mlp.up_proj": (4, 6)})
    remove_digest(tmp_path / "foreign")
    names = ("other", "out", "wrong", "foreign", "missing", "nameless", "quantised")
    folders = {"mine": adapter, "base": base} | {name: tmp_path / name for name in names}
    assert export(*(argument.format(**folders) for argument in arguments)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def write_tokenizer(folder: Path, *, token: str = "a", longest: int | None = None) -> None:
    """Write a tokenizer of one token, with the limit of a training."""
    tokenizer = Tokenizer(WordLevel({token: 0}, unk_token=token))
    if longest is not None:
        tokenizer.enable_truncation(longest)
    tokenizer.save(str(folder / "tokenizer.json"))


def test_adapter_with_other_texts_than_its_base_is_refused(tmp_path: Path, base: Path, adapter: Path) -> None:
    """Tokenizer and chat template are those of the base; other programs save theirs next to the adapter."""
    write_tokenizer(base)
    write_tokenizer(adapter, longest=512)
    (base / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    (adapter / "chat_template.jinja").write_text("x")
    assert base_of(adapter, None) == base.resolve()
    (adapter / "chat_template.jinja").unlink()
    (adapter / "tokenizer_config.json").write_text("{")
    with pytest.raises(PreflightError, match="the chat template cannot be read"):
        base_of(adapter, None)
    (adapter / "tokenizer_config.json").write_text('{"chat_template": "y"}')
    with pytest.raises(PreflightError, match="has another chat template than its base"):
        base_of(adapter, None)
    (adapter / "tokenizer_config.json").unlink()
    write_tokenizer(adapter, token="b")
    with pytest.raises(PreflightError, match=r"has another tokenizer\.json than its base"):
        base_of(adapter, None)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_base_without_a_name_of_a_file_is_not_found(name: str, base: Path, adapter: Path) -> None:
    """A config of another program may name anything."""
    config = json.loads((adapter / CONFIG).read_text()) | {"base_model_name_or_path": name}
    (adapter / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ModelNotFound, match="is no model folder of this machine"):
        base_of(adapter, None)


def change_factors(adapter: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the tensors of an adapter. `change`: one tensor -> its replacement."""
    save_file({name: change(tensor) for name, tensor in load_file(adapter / TENSORS).items()}, adapter / TENSORS)


def change_weights(base: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the matrices in the first file of a base."""
    weights = load_file(base / SHARDS[0])
    weights = {name: change(tensor) if tensor.ndim == 2 else tensor for name, tensor in weights.items()}
    save_file(weights, base / SHARDS[0])


def omit_from_index(base: Path) -> None:
    index = base / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"].popitem()
    index.write_text(json.dumps(content))


def store_transposed(base: Path, adapter: Path) -> None:
    """Make the base a GPT-2, whose layers are Conv1D, with square weights of the adapter's shape."""
    (base / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    weights = {file: load_file(base / file) for file in SHARDS}
    for file, tensors in weights.items():
        square = {name: tensor[:, :4].clone() if tensor.ndim == 2 else tensor for name, tensor in tensors.items()}
        save_file(square, base / file)
    change_factors(adapter, lambda part: part[:, :4].clone() if part.shape[0] == 8 else part)


def tie_output(base: Path, adapter: Path) -> None:
    """Store the output layer of a base with tied embeddings, and adapt it."""
    config = {"model_type": "llama", "tie_word_embeddings": True}
    (base / "config.json").write_text(json.dumps(config))
    save_file(load_file(base / SHARDS[0]) | {"lm_head.weight": torch.zeros(4, 6)}, base / SHARDS[0])
    index = base / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["lm_head.weight"] = SHARDS[0]
    index.write_text(json.dumps(content))
    factors = load_file(adapter / TENSORS)
    first = next(iter(LAYERS))
    for part in ("lora_A", "lora_B"):
        factors[tensor_name("lm_head", part)] = factors[tensor_name(first, part)].clone()
    save_file(factors, adapter / TENSORS)
    own = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(own | {"target_modules": ["up_proj", "lm_head"]}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda base, _: (base / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda base, _: (base / "config.json").write_text("[]"), "config.json must be a JSON object"),
        (lambda base, _: (base / SHARDS[1]).unlink(), "download the folder again"),
        (lambda base, _: (base / SHARDS[1]).write_bytes(b"x" * 9), "download the folder again"),
        (lambda base, _: (base / "model.safetensors.index.json").write_text("[]"), "download the folder again"),
        (lambda base, _: omit_from_index(base), "is in no file by the index, but in"),
        (lambda base, _: change_weights(base, lambda weight: weight.to(torch.int8)), "has dtype torch.int8"),
        (lambda base, _: change_weights(base, lambda weight: weight.to(torch.float8_e4m3fn)), "has dtype torch.float8"),
        (lambda base, _: change_weights(base, lambda weight: weight.half() * 0 + 65504), ""),
        (lambda _, adapter: change_factors(adapter, lambda part: part * float("nan")), "that are not finite"),
        (store_transposed, "stores the weights of its layers transposed: merge"),
        (tie_output, "which is tied to the embedding"),
    ],
)
def test_merge_refuses_unusable_values(
    tmp_path: Path, base: Path, damage: Callable[[Path, Path], object], message: str, capsys: Any
) -> None:
    """Damaged bases, other dtypes and values, and an output layer that is the embedding: no folder is written."""
    foreign = write_foreign_adapter(tmp_path / "foreign", base)
    damage(base, foreign)
    if not message:
        change_factors(foreign, lambda part: part * 1000)
        message = "has values that torch.float16 cannot hold"
    assert export(foreign, tmp_path / "out", "--merge", "--base", base) == 1
    assert message in capsys.readouterr().err
    if "not finite" in message:
        assert export(foreign, tmp_path / "out", "--base", base) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("torn", [*SHARDS, "config.json"])
def test_torn_merged_model_is_written_again(tmp_path: Path, base: Path, adapter: Path, torn: str) -> None:
    """A file that is missing or shorter than its header states."""
    first = whole_model(adapter, base=None, jobs=tmp_path / "jobs")
    whole = (first / torn).read_bytes()
    (first / torn).unlink()
    if torn == SHARDS[0]:
        (first / torn).write_bytes(whole[:50])
    assert whole_model(adapter, base=None, jobs=tmp_path / "jobs") == first
    assert (first / torn).read_bytes() == whole


def test_merged_model_is_that_of_the_named_base(tmp_path: Path, base: Path, adapter: Path) -> None:
    """A merged model of an earlier call is not used for another base, nor after a change of the base's other files."""
    jobs, other = tmp_path / "jobs", write_base(tmp_path / "other", seed=1)
    first = whole_model(adapter, base=base, jobs=jobs)
    with pytest.raises(PreflightError, match="was trained on other weights than those of"):
        whole_model(adapter, base=other, jobs=jobs)
    (base / "tokenizer.json").write_text('{"changed": true}')
    second = whole_model(adapter, base=base, jobs=jobs)
    assert second != first and (second / "tokenizer.json").read_text() == '{"changed": true}'


def test_adapter_without_a_base_has_none(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the command is not its base, also if it is a model."""
    monkeypatch.chdir(base)
    with pytest.raises(PreflightError, match="names no base"):
        whole_model(write_foreign_adapter(tmp_path / "nameless", base), base=None, jobs=tmp_path / "jobs")


def test_base_of_a_whole_model_is_refused(base: Path, tmp_path: Path) -> None:
    """An option without effect is not ignored."""
    with pytest.raises(PreflightError, match="--base has no effect"):
        whole_model(base, base=base, jobs=tmp_path)
    assert whole_model(base, base=None, jobs=tmp_path) == base
