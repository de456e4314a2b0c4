"""Families of models: the trainer's log-probabilities are those of transformers, or the model is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models import CONFIG, OPTIMIZER, rank_here, rollout_groups
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from rstar2_train.api.stages import GRPOSettings
from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_support import UnsupportedModel
from rstar2_train.trainer import export, model, self_check, step
from rstar2_train.trainer.batching import distribute_rows, grpo_updates, update_counts
from rstar2_train.trainer.model import load_policy
from rstar2_train.trainer.model_files import copy_companions
from rstar2_train.trainer.rank import TrainerRank
from tests.support.model_families import FAMILIES, UNPACKED, write_family
from tests.support.model_faults import FAULTS, leak

LAYOUT = Layout(ranks=1, shards=1, tokens=256, unchecked=9)


@pytest.fixture(scope="module")
def rank() -> Iterator[TrainerRank]:
    """One rank without a model, for all tests of the module."""
    with rank_here(None) as rank:
        yield rank


def logprobs(folder: Path, rank: TrainerRank, rows: list[torch.Tensor], *, packed: bool) -> torch.Tensor:
    """Return the log-probability of each token after the first of each row, with a model loaded as ranks do."""
    policy = load_policy(folder, compute=rank.compute, chunk=16, layout=LAYOUT, packed=packed, longest=96)
    with torch.no_grad():
        return self_check.scored(policy, rows, packed=packed)


def test_padding_token_has_a_gradient(rank: TrainerRank, tmp_path: Path) -> None:
    """It is the end of a turn in many models, and torch leaves the embedding of such a token as it is."""
    write_family("Llama", tmp_path, pad_token_id=5)
    policy = load_policy(tmp_path, compute=rank.compute, chunk=16, layout=LAYOUT, packed=False, longest=96)
    row = torch.tensor([5, 95, 7, 9])
    logprobs, _ = policy(ids=row[None], positions=torch.arange(3), targets=row[1:])
    logprobs.sum().backward()
    gradient = model.stored_shards(policy)["model.embed_tokens.weight"].grad
    assert isinstance(gradient, DTensor)
    assert gradient.full_tensor()[row[:3]].abs().sum(1).gt(0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_transformers(family: str, rank: TrainerRank, tmp_path: Path) -> None:
    """Padded and packed, with sequences whose borders are at different offsets and that exceed a window.

    A class that passes no borders to its attention is refused when it is packed.
    """
    reference = write_family(family, tmp_path)
    rows = [torch.randint(3, 96, (length,)) for length in (40, 1, 23, 64, 2)]
    with torch.no_grad():
        expected = torch.cat([self_check.row_logprobs(reference(row[None]).logits[0], row) for row in rows])
    torch.testing.assert_close(logprobs(tmp_path, rank, rows, packed=False), expected, rtol=1e-5, atol=1e-5)
    if family in UNPACKED:
        with pytest.raises(UnsupportedModel, match=r"packed sequences attend to each other.*set spec.trainer.packing"):
            self_check.check_family(tmp_path, packed=True)
        return
    torch.testing.assert_close(logprobs(tmp_path, rank, rows, packed=True), expected, rtol=1e-5, atol=1e-5)
    differences = self_check.check_family(tmp_path, packed=True)
    assert differences is not None
    assert differences.largest < 1e-4


@pytest.mark.parametrize(
    "family",
    ["Gemma 2", "Granite 3", "Phi", "GPT-NeoX", "OLMo 3", "OLMoE", "Mixtral", "Qwen2-MoE", "Granite-MoE", "GPT-OSS"],
)
def test_family_trains_and_exports(
    family: str, rank: TrainerRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One update has the gradient of the plain computation, and the exported folder has the names of the first one."""
    folder = tmp_path / "model"
    reference = write_family(family, folder)
    (groups,) = grpo_updates(rollout_groups(3, 4), updates=1, seed=0)
    rows = [row for group in groups for row in group]
    tokens = update_counts(rows).group_tokens
    batches = distribute_rows(rows, ranks=1, tokens_per_micro_batch=64, packed=True)[0]
    loss = torch.zeros(())
    for row in rows:
        sequence = row.sequence
        ids = torch.from_numpy(sequence.ids).long()
        values = self_check.row_logprobs(reference(ids[None]).logits[0], ids)[torch.from_numpy(sequence.mask[1:])]
        # The slope of eq. 6 at a ratio of 1.
        loss = loss - (values * sequence.advantage).sum() / float(tokens[row.group]) / len(groups)
    loss.backward()
    expected = {name: parameter.grad for name, parameter in reference.named_parameters()}
    monkeypatch.setattr(rank, "config", replace(CONFIG, packed=True))
    rank.load(folder, OPTIMIZER)
    policy, _ = rank._loaded()
    step.grpo_backward(policy, batches, rank.compute.device, settings=GRPOSettings(), start=None)
    for name, parameter in policy.named_parameters():
        actual = parameter.grad.full_tensor()  # type: ignore[union-attr]
        wanted = expected[name.replace(model.WRAPPER, "").removeprefix("model.")]
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max()) + 1e-7)
    policy.zero_grad()
    (tmp_path / "exported").mkdir()
    copy_companions(folder, tmp_path / "exported")
    export.write_weights(policy, folder, tmp_path / "exported")
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "exported"))
    assert set(after) == set(before)
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_old_files_with_frequencies_load(rank: TrainerRank, tmp_path: Path) -> None:
    """Tensors of old files that transformers does not read are skipped; other unknown ones are refused."""
    write_family("Llama", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(tensors, file, metadata={"format": "pt"})
    load_policy(tmp_path, compute=rank.compute, chunk=16, layout=LAYOUT)
    save_file(tensors | {"model.layers.0.self_attn.other": torch.ones(4)}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"unknown \['model.layers.0.self_attn.other'\]"):
        load_policy(tmp_path, compute=rank.compute, chunk=16, layout=LAYOUT)


@pytest.mark.parametrize("fault", FAULTS)
def test_self_check_refuses_a_seeded_fault(
    fault: str, rank: TrainerRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of each kind is refused with figure and cause; without it the same model passes."""
    family, seed = FAULTS[fault]
    write_family(family, tmp_path)
    self_check.check_family(tmp_path, packed=True)
    seed(monkeypatch.setattr)
    with pytest.raises(UnsupportedModel, match=r"differ from those of \w+ in transformers by [0-9.e+]+ nats"):
        self_check.check_family(tmp_path, packed=True)


def test_check_weights_refuses_the_loaded_model(
    rank: TrainerRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loaded weights are compared too, with the figure in the message."""
    write_family("Qwen3", tmp_path)
    leak(monkeypatch.setattr)
    policy = load_policy(tmp_path, compute=rank.compute, chunk=16, layout=LAYOUT, packed=True)
    with pytest.raises(UnsupportedModel, match=r"Qwen3ForCausalLM.*packed sequences attend to each other"):
        self_check.check_weights(policy, rank.compute, packed=True)


def test_unsupported_config_is_refused_before_the_weights_load(rank: TrainerRank, tmp_path: Path) -> None:
    """A model of a kind that the trainer does not compute is refused by the field of its config.json."""
    write_family("Llama", tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"logit_scale": 2.0}))
    with pytest.raises(UnsupportedModel, match=r"config.json: logit_scale: 2.0"):
        rank.load(tmp_path, OPTIMIZER)
