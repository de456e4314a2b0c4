"""Adapters: their gradient against float64, checkpoints over ranks, the merged folder, and what is refused."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import CONFIG, OPTIMIZER, RanksHere, conversations, rank_here, rollout_groups, save, write_model
from rank_processes import run_ranks
from safetensors.torch import load_file
from test_gradient import BFLOAT16_RTOL, SETTINGS, Case, reference_loss
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.lora import LoRASpec
from rstar2_train.api.objectives import ReferenceKL
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.capacity.layout import Layout
from rstar2_train.capacity.model_support import ADAPTED, UnsupportedModel
from rstar2_train.capacity.weight_files import companions
from rstar2_train.trainer import lora, self_check, step
from rstar2_train.trainer.batching import distribute_rows, grpo_updates, sft_rows
from rstar2_train.trainer.merge import merge
from rstar2_train.trainer.model import Policy, load_policy, named_shards, trained_shards
from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.sharding import first_row
from rstar2_train.trainer.trainer_group import TrainerGroup
from rstar2_train.weights import adapter_folder, version_store
from rstar2_train.weights.adapter_folder import AdapterIdentity, tensor_name
from tests.support.model_families import FAMILIES, write_family

SPEC = LoRASpec(rank=8, alpha=16)
IDENTITY = AdapterIdentity(base="", rank=8, alpha=16, modules=SPEC.modules)
RTOL = 2e-6
"""Bound of the relative error of the gradient, by norm: that of transformers in float32 is 1e-6 with this model."""
CASES = {
    1: [Case(1, tokens=4096), Case(1, tokens=20, packed=True, unchecked=1)],
    2: [
        *(Case(2, tokens=20), Case(2, packed=True, reduce_once=True, unchecked=0), Case(1, tokens=30, packed=True)),
        Case(2, tokens=20, packed=True, dtype=torch.bfloat16),
        Case(2, tokens=20, packed=True, unchecked=0, offload=True, dtype=torch.bfloat16),
        Case(1, tokens=30, packed=True, reduce_once=True, unchecked=1, offload=True),
    ],
}


def drawn_adapter(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Return random A and B: with B = 0, as at the start, the gradient of A would be zero."""
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in sorted(shapes.items())}


@torch.no_grad()
def fill(policy: Policy) -> None:
    """Set the adapter of a policy to the drawn one."""
    shards = trained_shards(policy)
    values = drawn_adapter({name: tuple(shard.shape) for name, shard in shards.items()})
    for name, shard in shards.items():
        local, start = shard.to_local(), first_row(shard)
        local.copy_(values[name][start : start + len(local)])


def lora_gradients(rank: int, ranks: int, port: int, model: Path, cases: list[Case]) -> list[dict[str, Any] | None]:
    """Return the gradient of the adapter in each case, at rank 0; the base must have none."""
    trainer = TrainerRank(rank=rank, ranks=ranks, config=CONFIG)
    trainer.connect("127.0.0.1", port, 1)
    wholes = [lora_gradient(trainer, model, case, rank=rank, ranks=ranks) for case in cases]
    trainer.close()
    return [whole if rank == 0 else None for whole in wholes]


def lora_gradient(trainer: TrainerRank, model: Path, case: Case, *, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Return the gradient of the adapter; the base must have none."""
    names = ("shards", "tokens", "unchecked", "reduce_once", "offload")
    layout = Layout(ranks=ranks, **{name: getattr(case, name) for name in names})
    compute = replace(trainer.compute, dtype=case.dtype)
    policy = load_policy(model, compute=compute, chunk=16, layout=layout, packed=case.packed, adapter=SPEC, seed=3)
    fill(policy)
    assert offloads(policy) == {case.offload}
    (update,) = grpo_updates(rollout_groups(4, 4), updates=1, seed=0)
    rows = [row for group in update for row in group]
    batches = distribute_rows(rows, ranks=ranks, tokens_per_micro_batch=case.tokens, packed=case.packed)[rank]
    step.grpo_backward(policy, batches, trainer.compute.device, settings=SETTINGS, start=None)
    trained = trained_shards(policy)
    for name, shard in named_shards(policy).items():
        assert (shard.grad is not None) == (name in trained), name
        assert shard.dtype == (torch.float32 if name in trained else case.dtype), name
    return {name: shard.grad.full_tensor().numpy() for name, shard in trained.items() if shard.grad is not None}


def offloads(policy: Policy) -> set[bool]:
    """Return whether FSDP copies the parameters of each of its modules from host memory."""
    states = [module._get_fsdp_state() for module in policy.modules() if isinstance(module, FSDPModule)]
    return {isinstance(state._fsdp_param_group.offload_policy, CPUOffloadPolicy) for state in states}


def reference_gradient(model: Path, adapters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the gradient of minus eq. 6 in float64, by autograd through the merged weights."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager").eval()
    leaves = {name: tensor.double().requires_grad_() for name, tensor in adapters.items()}
    merged = {name: parameter.detach() for name, parameter in policy.named_parameters()}
    for name in {name.rpartition(".")[0] for name in leaves}:
        product = leaves[f"{name}.lora_B"] @ leaves[f"{name}.lora_A"]
        merged[f"{name}.weight"] = merged[f"{name}.weight"] + SPEC.alpha / SPEC.rank * product
    reference_loss(lambda ids: functional_call(policy, merged, (ids,)).logits[0], rollout_groups(4, 4)).backward()
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.parametrize("ranks", [1, 2])
def test_lora_gradient_equals_float64_autograd(model_dir: Path, ranks: int) -> None:
    """Padded and packed, over ranks, shards and HSDP copies; float32 adapters on a bfloat16 base, without gradients."""
    results = run_ranks(lora_gradients, ranks, model_dir, CASES[ranks])[0]
    shapes = {name: array.shape for name, array in results[0].items()}
    assert len(shapes) == 2 * 7 * 2, "two layers, seven targets, A and B"
    expected = reference_gradient(model_dir, drawn_adapter(shapes))
    for case, actual in zip(CASES[ranks], results, strict=True):
        actual = {name: torch.from_numpy(array).double() for name, array in actual.items()}
        assert actual.keys() == expected.keys()
        difference = sum((actual[name] - tensor).square().sum() for name, tensor in expected.items())
        size = sum(tensor.square().sum() for tensor in expected.values())
        bound = RTOL if case.dtype is torch.float32 else BFLOAT16_RTOL
        assert (difference / size).sqrt() < bound, case
        for name, tensor in expected.items():
            assert (actual[name] - tensor).norm() < 3 * bound * tensor.norm(), (case, name)


def state_digest(trainer: TrainerRank) -> str:
    """Return a hash of the whole adapter and its moments. Collective."""
    assert trainer.policy is not None and trainer.optimizer is not None
    digest = hashlib.sha256()
    for name, shard in trained_shards(trainer.policy).items():
        state = trainer.optimizer.state[shard]
        for tensor in (shard.full_tensor(), state["exp_avg"].full_tensor(), state["exp_avg_sq"].full_tensor()):
            digest.update(name.encode() + tensor.detach().numpy().tobytes())
        digest.update(state["step"].numpy().tobytes())
    return digest.hexdigest()


def run_lora_rank(
    rank: int, ranks: int, port: int, model: Path, offload: bool, source: Path | None, target: Path
) -> tuple[str, str]:
    """Start or restore, and write a checkpoint; return the digests of the fresh and of the written state."""
    trainer = TrainerRank(rank=rank, ranks=ranks, config=replace(CONFIG, lora=SPEC, offload=offload, seed=3))
    trainer.connect("127.0.0.1", port, 1)
    trainer.load(model, OPTIMIZER)
    fresh = state_digest(trainer)
    if source is None:
        for seed in (0, 1):
            rows = sft_rows(conversations(8, seed=seed))
            trainer.sft(distribute_rows(rows, ranks=ranks, tokens_per_micro_batch=4096)[rank], 1e-2)
    else:
        trainer.restore(source, False)
    trainer.snapshot_state()
    trainer.write_checkpoint(target)
    written = state_digest(trainer)
    trainer.close()
    return fresh, written


def test_lora_state_moves_between_ranks(model_dir: Path, tmp_path: Path) -> None:
    """2 ranks, 1 rank, 2 ranks: the fresh adapter, and the restored one with its moments, are the same bits.

    The shards of the first and of the last ranks are in host memory.
    """
    source: Path | None = None
    digests = []
    for number, (ranks, offload) in enumerate(((2, True), (1, False), (2, True))):
        target = tmp_path / f"{number}"
        target.mkdir()
        digests += run_ranks(run_lora_rank, ranks, model_dir, offload, source, target)
        source = target
    assert len({fresh for fresh, _ in digests}) == 1
    assert len({written for _, written in digests}) == 1
    assert digests[0][0] != digests[0][1]
    names = FileSystemReader(tmp_path / "0").read_metadata().state_dict_metadata
    tensors = [name for name in names if not name.startswith("generator")]
    assert all("lora_" in name for name in tensors), "no tensor of the base is in the checkpoint"
    assert len(tensors) == 2 * 7 * 2 * 4, "tensor, step and two moments of A and B of each target"


@pytest.fixture(scope="module")
def half_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("half") / "model", dtype="bfloat16", tied=False)


def started(model: Path, spec: LoRASpec | None = SPEC) -> TrainerGroup:
    """Return a group of one rank in this process that trains an adapter."""
    group = TrainerGroup(ranks=1, config=replace(CONFIG, lora=spec, packed=True), start_ranks=RanksHere)  # type: ignore[arg-type]
    group.load(model, optimizer=OPTIMIZER)
    return group


def test_lora_folders_hold_the_trained_policy(half_model: Path, tmp_path: Path) -> None:
    """A published adapter on its base has the trainer's log-probabilities; the merged folder is rounded once."""
    rows = [[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]]
    with started(half_model) as group:
        base, first = group.score(rows)
        for seed in range(3):
            group.sft_step(conversations(8, seed=seed), lr=1e-2)
        trained, second = group.score(rows)
        manifest = group.publish_adapter(tmp_path / "version", version="s-step-000003", version_id="0123456789ab")
        group.export(tmp_path / "merged", stop_ids=[2, 7])
    assert np.abs(np.array(base) - np.array(trained)).max() > 0.1
    assert first != second
    assert version_store.read_manifest(tmp_path / "version") == manifest
    assert manifest.bytes == sum(
        (tmp_path / "version" / name).stat().st_size for name in (adapter_folder.CONFIG, adapter_folder.TENSORS)
    )
    tensors = adapter_folder.read_tensors(tmp_path / "version")
    assert adapter_folder.find_base(tmp_path / "version") == adapter_folder.folder_digest(half_model)
    for name in (adapter_folder.CONFIG, adapter_folder.TENSORS):
        assert (tmp_path / "merged" / "adapter" / name).read_bytes() == (tmp_path / "version" / name).read_bytes()

    stored, merged = load_file(half_model / "model.safetensors"), load_file(tmp_path / "merged" / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(half_model, dtype=torch.float32)
    weights = dict(model.named_parameters())
    assert stored.keys() == merged.keys()
    merge(tmp_path / "merged" / "adapter", half_model, tmp_path / "again")
    for file in companions(tmp_path / "merged"):
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), "also the tokens that end a turn"
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == merged.keys() and all(torch.equal(again[name], tensor) for name, tensor in merged.items())
    changed = 0
    for name, weight in stored.items():
        layer = name.removesuffix(".weight")
        if tensor_name(layer, "lora_A") not in tensors:
            assert torch.equal(merged[name], weight), name
            continue
        a, b = (torch.from_numpy(tensors[tensor_name(layer, matrix)]) for matrix in ("lora_A", "lora_B"))
        whole = weight.float() + SPEC.alpha / SPEC.rank * (b @ a)
        assert merged[name].dtype == torch.bfloat16
        assert torch.equal(merged[name], whole.bfloat16()), name
        weights[name].data.copy_(whole)
        changed += 1
    assert changed == 2 * 7
    with torch.no_grad():
        for row, values in zip(rows, trained, strict=True):
            log_p = model(torch.tensor([row])).logits[0].log_softmax(-1)[:-1]
            expected = log_p.gather(1, torch.tensor(row)[1:, None]).squeeze(1)
            assert values == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("adapter", [SPEC, None])
def test_export_of_values_that_float16_cannot_hold_is_refused(tmp_path: Path, adapter: LoRASpec | None) -> None:
    """The merged and the whole model: no infinite weight is written."""
    model = write_model(tmp_path / "model", dtype="float16", tied=False)
    with rank_here(model, lora=adapter) as rank:
        assert rank.policy is not None
        with torch.no_grad():
            for shard in trained_shards(rank.policy).values():
                shard.to_local().fill_(7e4)
        (tmp_path / "out").mkdir()
        with pytest.raises(UnsupportedModel, match=r"has values that torch.float16 cannot hold: convert the base"):
            rank.export(model, tmp_path / "out")


def test_lora_checkpoint_of_another_adapter_is_refused(half_model: Path, model_dir: Path, tmp_path: Path) -> None:
    """Another base, rank, scale, other targets and a whole model are refused, and the message names the difference."""
    folder = tmp_path / "step-000001"
    with started(half_model) as group:
        group.sft_step(conversations(4), lr=1e-2)
        save(group, folder, step=1)
        assert group.restore(folder).step == 1
    for model, spec, text in (
        (model_dir, SPEC, "the base with SHA-256"),
        (half_model, LoRASpec(rank=16, alpha=16), "rank 8, now 16"),
        (half_model, LoRASpec(rank=8, alpha=8), "alpha 16, now 8"),
        (half_model, LoRASpec(rank=8, alpha=16, target_modules=["Mlp"]), "modules"),
        (half_model, None, "it has an adapter, and the stage trains the whole model"),
    ):
        with started(model, spec) as group, pytest.raises(StageFailed, match=text):
            group.restore(folder)


def test_lora_compiled_layers_have_the_same_loss(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch compiles a layer with adapters, checkpointed too; the update is that of the plain layers."""
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    losses = []
    for compiled in (False, True):
        config = replace(CONFIG, lora=SPEC, packed=True, compiled=compiled, activation_checkpointing=True)
        with rank_here(model_dir, config=config) as rank:
            rows = sft_rows(conversations(8))
            batches = distribute_rows(rows, ranks=1, tokens_per_micro_batch=4096, packed=True)[0]
            losses.append([rank.sft(batches, 1e-2).sums["loss"] for _ in range(2)])
            assert not compiled or (rank.watch is not None and rank.watch.graphs > 0)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_lora_reference_of_the_stage_is_the_base(model_dir: Path, tmp_path: Path) -> None:
    """The KL term is that of a second model, and the ranks hold none."""
    copy = Path(shutil.copytree(model_dir, tmp_path / "copy"))
    settings = GRPOSettings(reference_kl=ReferenceKL(weight=0.5, estimator="K3", model="Stage"))
    measured = []
    for reference in (model_dir, copy):
        config = replace(CONFIG, lora=SPEC, packed=True, reference=reference)
        with TrainerGroup(ranks=1, config=config, start_ranks=RanksHere) as group:  # type: ignore[arg-type]
            group.load(model_dir, optimizer=OPTIMIZER)
            assert (group.layout.reference is not None) == (reference == copy)
            steps = [group.grpo_step(rollout_groups(2, 4), lr=1e-2, settings=settings, seed=0) for _ in range(2)]
            measured.append([each[name] for each in steps for name in ("reference_kl", "loss", "grad_norm")])
    assert measured[0] == pytest.approx(measured[1], rel=1e-5)
    assert measured[0][0] == pytest.approx(0.0, abs=1e-7) and measured[0][3] > 1e-4


ADAPTED_FAMILIES = [name for name, config in FAMILIES.items() if config().model_type in ADAPTED]


@pytest.mark.parametrize("family", ADAPTED_FAMILIES)
def test_lora_families_equal_the_merged_weights(family: str, tmp_path: Path) -> None:
    """Every linear layer gets an adapter, nothing else is trained, and the policy is that of merged weights."""
    model = write_family(family, tmp_path)
    layout = Layout(ranks=1, shards=1, tokens=256, unchecked=9)
    rows = [torch.randint(3, 96, (length,)) for length in (40, 1, 23)]
    with rank_here(None) as rank:
        policy = load_policy(
            tmp_path, compute=rank.compute, chunk=16, layout=layout, packed=True, longest=96, adapter=SPEC
        )
        fill(policy)
        names = trained_shards(policy)
        with torch.no_grad():
            actual = self_check.scored(policy, rows, packed=True)
    assert len(names) == 2 * 7 * 2 and all("lora_" in name for name in names)
    adapters = drawn_adapter({name: tuple(shard.shape) for name, shard in names.items()})
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for layer in {name.rpartition(".")[0] for name in adapters}:
            product = adapters[f"{layer}.lora_B"].double() @ adapters[f"{layer}.lora_A"].double()
            weights[f"{layer}.weight"] += (IDENTITY.scale * product).float()
        expected = torch.cat([self_check.row_logprobs(model(row[None]).logits[0], row) for row in rows])
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=2e-5)


def test_lora_refuses_layers_of_another_form(tmp_path: Path) -> None:
    """A model whose layers have other linear layers would get an adapter only in a part of them."""
    model = AutoModelForCausalLM.from_config(FAMILIES["Phi-3 and 4"]())
    with pytest.raises(UnsupportedModel, match="qkv_proj"):
        lora.add_adapters(model, IDENTITY)
    model.save_pretrained(tmp_path)
    layout = Layout(ranks=1, shards=1, tokens=64, unchecked=1)
    with (
        rank_here(None) as rank,
        pytest.raises(UnsupportedModel, match=r"only cohere, .*, smollm3: remove lora"),
    ):
        load_policy(tmp_path, compute=rank.compute, chunk=16, layout=layout, adapter=SPEC)
