"""peft as the oracle of an adapter: the gradient of an update, and the log-probabilities of the exported files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import conversations, rank_here, rollout_groups
from peft import LoraConfig, PeftModel, get_peft_model
from rank_processes import run_ranks
from test_gradient import Case, reference_loss
from test_lora import SPEC, drawn_adapter, lora_gradient, lora_gradients, reference_gradient, started
from transformers import AutoModelForCausalLM

from tests.support.model_families import write_family

CASES = [Case(1, tokens=4096), Case(1, tokens=20, packed=True)]


def peft_gradient(model: Path, adapters: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the gradient of an update by peft, by our names."""
    base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager").eval()
    config = LoraConfig(r=SPEC.rank, lora_alpha=SPEC.alpha, target_modules=list(SPEC.modules), lora_dropout=0.0)
    policy = get_peft_model(base, config, autocast_adapter_dtype=False).eval()
    leaves = {
        name.removeprefix("base_model.model.").replace(".default.weight", ""): parameter
        for name, parameter in policy.named_parameters()
        if parameter.requires_grad
    }
    assert leaves.keys() == adapters.keys()
    with torch.no_grad():
        for name, parameter in leaves.items():
            parameter.copy_(adapters[name])
    reference_loss(lambda ids: policy(ids).logits[0], rollout_groups(4, 4)).backward()
    return {name: parameter.grad for name, parameter in leaves.items() if parameter.grad is not None}


def relative_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the error of a gradient by the norm of all tensors."""
    assert actual.keys() == expected.keys()
    difference = sum((actual[name].double() - tensor).square().sum() for name, tensor in expected.items())
    size = sum(tensor.square().sum() for tensor in expected.values())
    return float((difference / size).sqrt())


def test_lora_gradient_equals_that_of_peft(model_dir: Path) -> None:
    """Padded and packed, in float32, next to peft in float64, and no farther from it than peft in float32."""
    results = run_ranks(lora_gradients, 1, model_dir, CASES)[0]
    adapters = drawn_adapter({name: array.shape for name, array in results[0].items()})
    exact = peft_gradient(model_dir, adapters, torch.float64)
    rounded = relative_error(peft_gradient(model_dir, adapters, torch.float32), exact)
    for case, result in zip(CASES, results, strict=True):
        error = relative_error({name: torch.from_numpy(array) for name, array in result.items()}, exact)
        assert error < max(1e-6, rounded), (case, rounded)


@pytest.mark.parametrize("family", ["Gemma", "Gemma 3", "Qwen2.5", "SmolLM3"])
def test_lora_gradient_of_each_family(family: str, tmp_path: Path) -> None:
    """Packed, in float32: that of peft in float64, which is that of the merged weights."""
    write_family(family, tmp_path)
    with rank_here(None) as rank:
        actual = lora_gradient(rank, tmp_path, CASES[1])
    adapters = drawn_adapter({name: array.shape for name, array in actual.items()})
    exact = peft_gradient(tmp_path, adapters, torch.float64)
    rounded = relative_error(peft_gradient(tmp_path, adapters, torch.float32), exact)
    error = relative_error({name: torch.from_numpy(array) for name, array in actual.items()}, exact)
    assert error < max(1e-6, 2 * rounded), rounded
    assert relative_error(reference_gradient(tmp_path, adapters), exact) < 1e-12


def test_peft_loads_a_published_adapter(model_dir: Path, tmp_path: Path) -> None:
    """The version folder of a trained adapter has, in peft, the log-probabilities of the trainer."""
    rows = [[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]]
    with started(model_dir) as group:
        for seed in range(3):
            group.sft_step(conversations(8, seed=seed), lr=1e-2)
        trained, _ = group.score(rows)
        group.publish_adapter(tmp_path / "version", version="s-step-000003", version_id="0123456789ab")
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    policy = PeftModel.from_pretrained(base, tmp_path / "version")
    with torch.no_grad():
        for row, values in zip(rows, trained, strict=True):
            log_p = policy(torch.tensor([row])).logits[0].log_softmax(-1)[:-1]
            assert values == pytest.approx(log_p.gather(1, torch.tensor(row)[1:, None]).squeeze(1).tolist(), abs=1e-5)
