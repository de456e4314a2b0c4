"""The gradient of the sharded step against eq. 6, computed naively in float64; the collectives and waits of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import CONFIG, rollout_groups, write_model
from rank_processes import run_ranks
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from rstar2_train.api.objectives import ObjectiveSpec, Teacher
from rstar2_train.api.stages import GRPOSettings, ImportanceCorrection
from rstar2_train.capacity.layout import Layout
from rstar2_train.trainer import step
from rstar2_train.trainer.batching import distribute_rows, grpo_updates
from rstar2_train.trainer.model import load_policy, named_shards
from rstar2_train.trainer.rank import TrainerRank
from rstar2_train.trainer.reference import load_reference
from rstar2_train.trainer.types import TokenSequence

SETTINGS = GRPOSettings(temperature=0.8, importance_correction=ImportanceCorrection(enabled=True, cap=2.0))
RTOL = 1e-5
"""Bound of the gradient's relative error, by norm: in float32 the sums of different order differ by about 1e-7."""
BFLOAT16_RTOL = 0.05
"""The same in bfloat16, whose values have eight bits: about 0.02 with this model."""


@dataclass(frozen=True)
class Case:
    """One way to distribute the step."""

    shards: int
    tokens: int = 48
    unchecked: int = 2
    packed: bool = False
    compiled: bool = False
    reduce_once: bool = False
    offload: bool = False
    dtype: torch.dtype = torch.float32
    """Number format of forward and backward: bfloat16 is that of accelerators."""


WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2", "bincount", "repeat_interleave"}
"""Operations whose result the host needs: .item(), float(), a selection by a mask."""
CASES = {
    1: [
        Case(1, tokens=4096),
        Case(1, packed=True),
        Case(1, tokens=20, packed=True, unchecked=1),
        Case(1, unchecked=0),
        Case(1, tokens=4096, packed=True, unchecked=0, compiled=True),
    ],
    2: [
        Case(2, tokens=20),
        Case(2, packed=True, reduce_once=True),
        Case(1, tokens=30, unchecked=0),
        Case(2, tokens=20, packed=True, unchecked=1, compiled=True),
    ],
    4: [
        Case(4, tokens=30, unchecked=1),
        Case(4, tokens=20, packed=True, reduce_once=True, unchecked=0),
        Case(2, tokens=20),
        Case(2, tokens=20, packed=True, reduce_once=True, unchecked=0),
        Case(2, tokens=20, packed=True, reduce_once=True, unchecked=1, compiled=True),
    ],
}


def far_groups() -> list[list[TokenSequence]]:
    """Return four groups in which other weights sampled some rollouts: none, one, all and three rollouts."""
    groups = rollout_groups(4, 4)
    return [
        [
            replace(rollout, engine_logprobs=np.full(len(rollout.ids), -30.0, np.float32)) if member < far else rollout
            for member, rollout in enumerate(group)
        ]
        for group, far in zip(groups, [0, 1, 4, 3], strict=True)
    ]


def is_far(rollout: TokenSequence) -> bool:
    assert rollout.engine_logprobs is not None
    return bool(rollout.engine_logprobs[0] == -30.0)


def reference_gradient(
    model: Path, groups: list[list[TokenSequence]], *, denominators: list[list[TokenSequence]] | None = None
) -> dict[str, torch.Tensor]:
    """Return the gradient of minus eq. 6 in float64: full logits, one sequence at a time, written from the equation.

    `denominators`: the rollouts of each group that count in its tokens; default: all.
    """
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager").eval()
    reference_loss(lambda ids: policy(ids).logits[0], groups, denominators=denominators).backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters()}


def reference_loss(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    groups: list[list[TokenSequence]],
    *,
    denominators: list[list[TokenSequence]] | None = None,
) -> torch.Tensor:
    """Return minus eq. 6. `logits_of`: from ids [1, tokens] to logits [tokens, vocabulary] in float64."""
    loss, bounds = torch.zeros((), dtype=torch.float64), SETTINGS.objective
    for group, counted in zip(groups, denominators or groups, strict=True):
        tokens = sum(int(rollout.mask.sum()) for rollout in counted)
        for rollout in group:
            assert rollout.engine_logprobs is not None
            ids = rollout.ids.tolist()
            logits = logits_of(torch.tensor([ids])) / SETTINGS.temperature
            for place in np.flatnonzero(rollout.mask):
                row = logits[place - 1]
                logp = row[ids[place]] - torch.logsumexp(row, dim=0)
                ratio = torch.exp(logp - logp.detach())
                clipped = ratio.clamp(1 - bounds.clip_low, 1 + bounds.clip_high)
                term = torch.minimum(ratio * rollout.advantage, clipped * rollout.advantage)
                gap = logp.detach() - float(rollout.engine_logprobs[place])
                loss = loss - term * gap.exp().clamp(max=SETTINGS.correction_cap) / tokens / len(groups)
    return loss


class OperationCount(TorchDispatchMode):
    """Counts the collectives, and the operations for whose result the host would wait for a GPU, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, name = str(function).split(".")[:2]
        if space == "c10d":
            self.calls[name.strip("_")] += 1
        # The number of elements that a mask selects is a value of the device too.
        masks = args[1] if name.startswith("index") and len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
        if name in WAITS or any(each is not None and each.dtype == torch.bool for each in masks):
            self.waits[name] += 1
        return function(*args, **(kwargs or {}))


def gradients(
    rank: int,
    ranks: int,
    port: int,
    model: Path,
    cases: list[Case],
    groups: list[list[TokenSequence]],
    settings: GRPOSettings = SETTINGS,
    old: float | None = None,
) -> list[Any]:
    """Return of each case the gradient (at rank 0), the number of micro-batches, the collectives and the waits.

    `old`: log-probability of every token at the start of the step; None: that of the policy.
    """
    trainer = TrainerRank(rank=rank, ranks=ranks, config=CONFIG)
    trainer.connect("127.0.0.1", port, 1)
    results = []
    for case in cases:
        layout = Layout(
            ranks=ranks,
            shards=case.shards,
            tokens=case.tokens,
            unchecked=case.unchecked,
            reduce_once=case.reduce_once,
        )
        policy = load_policy(
            model,
            compute=replace(trainer.compute, dtype=case.dtype),
            chunk=16,
            layout=layout,
            packed=case.packed,
            compiled=case.compiled,
        )
        teacher = None
        if settings.has_reference:
            assert settings.objective.teacher is not None
            folder, config = Path(settings.objective.teacher.source or ""), replace(CONFIG, packed=case.packed)
            teacher = load_reference(folder, model, compute=trainer.compute, layout=layout, config=config)
        (update,) = grpo_updates(groups, updates=1, seed=0)
        rows = [row for group in update for row in group]
        batches = distribute_rows(rows, ranks=ranks, tokens_per_micro_batch=case.tokens, packed=case.packed)[rank]
        device, start = trainer.compute.device, None
        if settings.importance_correction.drops_sequences:
            (start,) = step.step_start(policy, [batches], device, settings=settings)
        if old is not None:
            values = [torch.full(batch.targets.shape, old) for batch in batches]
            start = step.UpdateStart(values, excluded=[None] * len(values))
        with OperationCount() as count:
            step.grpo_backward(policy, batches, device, settings=settings, start=start, reference=teacher)
        whole = {}
        for name, shard in named_shards(policy).items():
            assert shard.grad is not None
            assert shard.dtype == shard.grad.dtype == torch.float32
            whole[name] = shard.grad.full_tensor().numpy()
        results.append((whole if rank == 0 else None, len(batches), count.calls, count.waits))
    trainer.close()
    return results


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> dict[str, torch.Tensor]:
    return reference_gradient(model_dir, rollout_groups(4, 4))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_step_gradient_equals_float64_equation(model_dir: Path, reference: dict[str, torch.Tensor], ranks: int) -> None:
    """For any mesh, micro-batches, checkpointing, packing and compilation the gradient is that of eq. 6.

    No operation of the micro-batches makes the host wait for the device.
    """
    results = run_ranks(gradients, ranks, model_dir, CASES[ranks], rollout_groups(4, 4))[0]
    for case, (actual, micro_batches, collectives, waits) in zip(CASES[ranks], results, strict=True):
        assert actual.keys() == reference.keys()
        actual = {name: torch.from_numpy(array).double() for name, array in actual.items()}
        difference = sum((actual[name] - expected).square().sum() for name, expected in reference.items())
        size = sum(expected.square().sum() for expected in reference.values())
        assert (difference / size).sqrt() < RTOL, case
        for name, expected in reference.items():
            assert (actual[name] - expected).norm() < RTOL * expected.norm(), (case, name)
        assert not waits, case
        groups = 3  # two layers, and embedding with projection and norm
        if ranks > 1:
            assert micro_batches > 1
            scattered = groups * (1 if case.reduce_once else micro_batches) if case.shards > 1 else 0
            assert collectives["reduce_scatter_base"] == scattered, case
            assert collectives["allreduce"] == (groups if case.shards < ranks else 0), case


def test_step_gradient_in_bfloat16_is_near_the_equation(model_dir: Path, reference: dict[str, torch.Tensor]) -> None:
    """As on accelerators: bfloat16 computes over float32 weights, and gradients are summed and kept in float32."""
    cases = [
        Case(2, tokens=20, packed=True, reduce_once=True, unchecked=1, dtype=torch.bfloat16),
        Case(2, tokens=20, dtype=torch.bfloat16),
        Case(4, packed=True, unchecked=0, dtype=torch.bfloat16),
    ]
    for case, (actual, *_) in zip(
        cases, run_ranks(gradients, 4, model_dir, cases, rollout_groups(4, 4))[0], strict=True
    ):
        difference = sum(
            (torch.from_numpy(actual[name]).double() - tensor).square().sum() for name, tensor in reference.items()
        )
        size = sum(tensor.square().sum() for tensor in reference.values())
        assert (difference / size).sqrt() < BFLOAT16_RTOL, case


def test_step_gradient_of_an_untied_model(tmp_path: Path) -> None:
    """A projection of its own has its own gradient, as in eq. 6."""
    model = write_model(tmp_path / "model", tied=False)
    expected = reference_gradient(model, rollout_groups(4, 4))
    ((actual, *_),) = run_ranks(gradients, 1, model, [Case(1, packed=True)], rollout_groups(4, 4))[0]
    for name, tensor in expected.items():
        assert (torch.from_numpy(actual[name]).double() - tensor).norm() < RTOL * tensor.norm(), name


@pytest.mark.parametrize("drop", [False, True], ids=["mask", "drop"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_step_gradient_of_rollouts_above_the_gap(model_dir: Path, ranks: int, drop: bool) -> None:
    """A masked rollout stays in the denominators, a dropped one leaves them, for any distribution over the ranks."""
    correction = ImportanceCorrection(
        enabled=True, cap=2.0, max_sequence_gap=10.0, sequence_gap_action="Drop" if drop else "Mask"
    )
    settings = SETTINGS.model_copy(update={"importance_correction": correction})
    groups = far_groups()
    near = [[rollout for rollout in group if not is_far(rollout)] for group in groups]
    if drop:
        expected = reference_gradient(model_dir, [group for group in near if group])
    else:
        expected = reference_gradient(model_dir, near, denominators=groups)
    cases = [Case(ranks, tokens=20), Case(ranks, packed=True)]
    for case, (actual, *_) in zip(
        cases, run_ranks(gradients, ranks, model_dir, cases, groups, settings)[0], strict=True
    ):
        for name, tensor in expected.items():
            assert (torch.from_numpy(actual[name]).double() - tensor).norm() < RTOL * tensor.norm(), (case, name)


OLD = -4.0


def objective_gradient(
    model: Path, groups: list[list[TokenSequence]], settings: GRPOSettings, *, teacher: Path | None = None
) -> dict[str, torch.Tensor]:
    """Return the gradient of minus the objective in float64, one sequence at a time; every old value is OLD."""
    policy, frozen = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
        for folder in (model, teacher or model)
    )
    bounds, loss = settings.objective, torch.zeros((), dtype=torch.float64)
    rollouts = [rollout for group in groups for rollout in group]
    for rollout in rollouts:
        values, theirs = (_logprobs(each, rollout) for each in (policy, frozen))
        if settings.objective.teacher is not None:
            advantage = rollout.advantage + bounds.teacher_weight * (theirs - values).detach()
            tokens = sum(int(each.mask.sum()) for each in rollouts)
            loss = loss - ((values - OLD).exp() * advantage).sum() / tokens
            continue
        ratio = (values - OLD).mean().exp() if bounds.type == "GSPO" else (values - OLD).exp()
        clipped = ratio.clamp(1 - bounds.clip_low, 1 + bounds.clip_high)
        term = torch.minimum(ratio * rollout.advantage, clipped * rollout.advantage)
        divisor = 1 if bounds.type == "GSPO" else settings.max_response_tokens
        loss = loss - term.sum() / divisor / len(rollouts)
    loss.backward()
    return {name: parameter.grad for name, parameter in policy.named_parameters()}


def _logprobs(policy: Any, rollout: TokenSequence) -> torch.Tensor:
    log_p = policy(torch.tensor([rollout.ids.tolist()])).logits[0].log_softmax(dim=-1)
    return torch.stack([log_p[place - 1, int(rollout.ids[place])] for place in np.flatnonzero(rollout.mask)])


def rated(groups: list[list[TokenSequence]], teacher: Path) -> list[list[TokenSequence]]:
    """Return the rollouts with the log-probabilities of a teacher, as its server returns them: of every token."""
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32).eval()

    def rate(rollout: TokenSequence) -> TokenSequence:
        with torch.no_grad():
            values = _logprobs(model, replace(rollout, mask=np.arange(len(rollout.ids)) > 0))
        return replace(rollout, reference_logprobs=np.concatenate([[0.0], values.numpy()]).astype(np.float32))

    return [[rate(rollout) for rollout in group] for group in groups]


@pytest.mark.parametrize("kind", ["GSPO", "DrGRPO", "Distillation", "Distillation, rated"])
def test_step_gradient_of_other_objectives(model_dir: Path, tmp_path: Path, kind: str) -> None:
    """The denominators are those of the update: padded or packed, over ranks, shards and HSDP copies."""
    groups = rollout_groups(4, 4)
    folder = None
    if kind.startswith("Distillation"):
        folder = write_model(tmp_path / "teacher", seed=8, layers=3)
        teacher = Teacher(source=str(folder))
        if kind != "Distillation":  # a server has rated the tokens; the ranks hold no teacher
            teacher, groups = Teacher(endpoint="http://teacher:8000"), rated(groups, folder)
        spec = ObjectiveSpec(type="Distillation", teacher=teacher, teacher_weight=0.5)
    else:
        spec = ObjectiveSpec(type=kind, clip_low=0.9, clip_high=3.0)
    settings = GRPOSettings(objective=spec.settings(), max_response_tokens=64)
    expected = objective_gradient(model_dir, groups, settings, teacher=folder)
    cases = [Case(2, tokens=20, packed=True, reduce_once=True), Case(2, tokens=30), Case(4, packed=True, unchecked=0)]
    results = run_ranks(gradients, 4, model_dir, cases, groups, settings, OLD)[0]
    for case, (actual, _, _, waits) in zip(cases, results, strict=True):
        assert not waits, case
        for name, tensor in expected.items():
            assert (torch.from_numpy(actual[name]).double() - tensor).norm() < RTOL * tensor.norm(), (case, name)
