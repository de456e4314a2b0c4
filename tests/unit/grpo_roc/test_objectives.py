"""Each objective against autograd of its equation in float64, and its gradient for any distribution of an update."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from rstar2_train.api.objectives import OBJECTIVES, ReferenceKL, Teacher
from rstar2_train.api.stages import GRPOSettings, ImportanceCorrection
from rstar2_train.grpo_roc.loss import kl_estimate
from rstar2_train.grpo_roc.objectives import functions_of
from rstar2_train.grpo_roc.tokens import Counts, GroupRewards, Tokens
from tests.support.drawn_updates import MOST, DrawnRollout, DrawnUpdate, draw_update, parts_of, settings_of

RTOL = 1e-6
KINDS = [kind for kind in OBJECTIVES if kind != "Custom"]
TEACHER = {"teacher": Teacher(source="teacher")}
CASES: dict[str, GRPOSettings] = {
    **{kind: settings_of(kind, **(TEACHER if kind == "Distillation" else {})) for kind in KINDS},
    "Distillation with the reward": settings_of("Distillation", **TEACHER, teacher_weight=0.3, reward_weight=2.0),
    "GRPO SequenceMean": settings_of("GRPO", aggregation="SequenceMean"),
    "GRPO TokenMean": settings_of("GRPO", aggregation="TokenMean"),
    "GSPO wide": settings_of("GSPO", clip_low=0.1, clip_high=0.2),
    "CISPO bounded": settings_of("CISPO", clip_low=0.2, clip_high=0.28),
    "DPPO narrow": settings_of("DPPO", max_divergence=0.05, max_ratio=1.2),
    "SAPO steep": settings_of("SAPO", positive_temperature=2.0, negative_temperature=3.0),
}

Equation = Callable[[Tensor, DrawnRollout, GRPOSettings], Tensor]
"""Log-probabilities, their rollout, settings -> objective of each token of one sequence, in float64."""


def ratio_of(new: Tensor, old: Tensor) -> Tensor:
    return torch.exp(torch.clamp(new - old.double(), -20, 20))


def clipped(ratio: Tensor, advantage: float, settings: GRPOSettings) -> Tensor:
    bounds = settings.objective
    bounded = torch.clamp(ratio, 1 - bounds.clip_low, 1 + bounds.clip_high)
    return torch.minimum(ratio * advantage, bounded * advantage)


def surrogate(new: Tensor, rollout: DrawnRollout, settings: GRPOSettings) -> Tensor:
    return clipped(ratio_of(new, rollout.old), rollout.advantage, settings)


def gspo(new: Tensor, rollout: DrawnRollout, settings: GRPOSettings) -> Tensor:
    likelihood = torch.exp(torch.clamp(new - rollout.old.double(), -20, 20).mean())
    return clipped(likelihood, rollout.advantage, settings).expand(len(new))


def cispo(new: Tensor, rollout: DrawnRollout, settings: GRPOSettings) -> Tensor:
    bounds = settings.objective
    weight = torch.clamp(ratio_of(new, rollout.old), 1 - bounds.clip_low, 1 + bounds.clip_high).detach()
    return weight * rollout.advantage * new


def sapo(new: Tensor, rollout: DrawnRollout, settings: GRPOSettings) -> Tensor:
    fields = settings.objective
    tau = fields.positive_temperature if rollout.advantage > 0 else fields.negative_temperature
    distance = tau * (ratio_of(new, rollout.old) - 1)
    # sigmoid(x) = 1 - sigmoid(-x): float64 too has no digits of a saturated gate.
    gate = torch.where(distance > 0, 1 - torch.sigmoid(-distance), torch.sigmoid(distance))
    return 4 / tau * gate * rollout.advantage


def dppo(new: Tensor, rollout: DrawnRollout, settings: GRPOSettings) -> Tensor:
    terms, advantage = [], rollout.advantage
    for now, before in zip(new, rollout.old.double(), strict=True):
        change = float(now.exp() - before.exp())
        far = (
            change > settings.objective.max_divergence if advantage > 0 else -change > settings.objective.max_divergence
        )
        weight = min(float(ratio_of(now, before)), settings.objective.max_ratio)
        terms.append(now * (0.0 if far and advantage else weight * advantage))
    return torch.stack(terms)


def plain(new: Tensor, rollout: DrawnRollout, settings: GRPOSettings) -> Tensor:
    return ratio_of(new, rollout.old) * rollout.advantage


def distillation(new: Tensor, rollout: DrawnRollout, settings: GRPOSettings) -> Tensor:
    behind = torch.clamp(rollout.reference.double() - new, -20, 20).detach()
    return ratio_of(new, rollout.old) * (rollout.advantage + settings.objective.teacher_weight * behind)


EQUATIONS: dict[str, Equation] = {
    **{"GRPO": surrogate, "DrGRPO": surrogate, "DAPO": surrogate, "GSPO": gspo, "CISPO": cispo},
    **{"SAPO": sapo, "DPPO": dppo, "RLOO": plain, "MaxRL": plain},
    "Distillation": distillation,
}
MEANS = {
    **{"DrGRPO": "constant", "DAPO": "TokenMean", "GSPO": "SequenceMean", "CISPO": "TokenMean"},
    **{"SAPO": "SequenceMean", "DPPO": "TokenMean", "RLOO": "TokenMean", "MaxRL": "TokenMean"},
    "Distillation": "TokenMean",
}


def reference_kl(new: Tensor, rollout: DrawnRollout, estimator: str) -> Tensor:
    """Return ratio x estimate, with the derivative of the equation also at the limits of d and of the ratio."""
    d = torch.clamp(new - rollout.reference.double(), -20, 20).detach()
    ratio = ratio_of(new, rollout.old).detach()
    inside = d.clone().requires_grad_()
    values = {"K1": inside, "K2": inside**2 / 2, "K3": torch.exp(-inside) - 1 + inside}[estimator]
    (slope,) = torch.autograd.grad(values.sum(), inside)
    return ratio * (values.detach() + (values.detach() + slope) * (new - new.detach()))


def equation(update: DrawnUpdate) -> tuple[Tensor, Tensor, float]:
    """Return minus the objective of the update and its gradient in float64, and the sum of the sizes of its terms."""
    settings = update.settings
    drops = settings.importance_correction.drops_sequences
    counted = [each for each in update.rollouts if not (drops and each.far)]
    groups = {each.group for each in counted}
    kind = settings.objective.type
    mean = MEANS.get(kind, settings.objective.aggregation)
    new = [each.new.double().requires_grad_() for each in update.rollouts]
    tokens = sum(len(each.new) for each in counted)
    loss, size = torch.zeros((), dtype=torch.float64), 0.0
    for rollout, values in zip(update.rollouts, new, strict=True):
        if rollout.far:
            loss = loss + 0.0 * values.sum()
            continue
        term = EQUATIONS[kind](values, rollout, settings)
        cap = settings.correction_cap
        if cap is not None:
            gap = rollout.old.double() - rollout.engine.double()
            term = term * (gap.mean() if kind == "GSPO" else gap).exp().clamp(max=cap)
        divisor = {
            "GroupMean": sum(len(each.new) for each in counted if each.group == rollout.group) * len(groups),
            "SequenceMean": len(values) * len(counted),
            "TokenMean": tokens,
            "constant": len(counted) * MOST,
        }[mean]
        loss = loss - term.sum() / divisor
        size += float(term.detach().abs().sum()) / divisor
        if settings.reference_kl is not None:
            kl = reference_kl(values, rollout, settings.reference_kl.estimator)
            loss = loss + settings.reference_kl.weight * kl.sum() / divisor
    loss.backward()
    return loss.detach(), torch.cat([values.grad for values in new if values.grad is not None]), size


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("extreme", [False, True], ids=["near", "extreme"])
@pytest.mark.parametrize("seed", range(2))
def test_objective_equals_its_equation_in_float64(name: str, extreme: bool, seed: int) -> None:
    """Loss and gradient of each token: lengths 1 to 300, all correct, all wrong, one token, truncated, any ratio."""
    update = draw_update(seed, CASES[name], extreme=extreme)
    parts, gradient = parts_of(update)
    loss, expected, size = equation(update)
    assert abs(sum(part.loss.item() for part in parts) - loss.item()) <= RTOL * size
    torch.testing.assert_close(gradient.double(), expected, rtol=RTOL, atol=0.0)
    assert float(expected.norm()) > 0


@pytest.mark.parametrize("name", CASES)
def test_objective_of_a_single_rollout_and_an_empty_one(name: str) -> None:
    """A group of one rollout is a group of the mean; a rollout without a trained token is in no denominator."""
    update = draw_update(12, CASES[name])
    single = replace(update.rollouts[-1], group=5)
    (single.advantage,) = functions_of(update.settings.objective).advantages(
        GroupRewards([single.reward], [len(single.mask)]), update.settings
    )
    assert single.advantage == 0
    update.rollouts.append(single)
    _, expected, _ = equation(update)
    nothing = torch.zeros(0)
    update.rollouts.insert(1, DrawnRollout(0, 1.0, [False], *[nothing] * 4, advantage=0.5))
    _, gradient = parts_of(update, ranks=2, budget=150)
    torch.testing.assert_close(gradient.double(), expected, rtol=RTOL, atol=0.0)


@pytest.mark.parametrize("name", CASES)
def test_objective_keeps_few_bytes_per_token(name: str) -> None:
    """For its backward pass, at any vocabulary. With 152,000 entries the update of GRPO has 323,000 bytes per token."""
    update, kept = draw_update(4, CASES[name]), list[Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        parts_of(update)
    tokens = sum(len(rollout.mask) for rollout in update.rollouts) + 2 * len(update.rollouts)
    assert kept and max(tensor.numel() for tensor in kept) <= tokens
    assert sum(tensor.nbytes for tensor in kept) <= 64 * tokens


@pytest.mark.parametrize("cap", [None, 1.1])
@pytest.mark.parametrize("extreme", [False, True], ids=["near", "extreme"])
def test_default_objective_is_that_of_the_paper_to_the_last_bit(extreme: bool, cap: float | None) -> None:
    """Eq. 6 in float32 with one rounded weight per token, as it was before objectives could be selected."""
    correction = ImportanceCorrection(enabled=cap is not None, cap=cap or 2.0)
    settings = GRPOSettings(max_response_tokens=MOST, importance_correction=correction)
    update = draw_update(7, settings, extreme=extreme)
    _, gradient = parts_of(update)
    sizes = [sum(len(each.new) for each in group) for group in update.groups]
    new, old, engine = (torch.cat([getattr(r, name) for r in update.rollouts]) for name in ("new", "old", "engine"))
    advantages, weights = (
        torch.cat([torch.full((len(each.new),), value(each)) for each in update.rollouts])
        for value in (lambda each: each.advantage, lambda each: 1.0 / (sizes[each.group] * len(sizes)))
    )
    logprobs = new.clone().requires_grad_()
    ratio = (logprobs - old).clamp(-20, 20).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - 0.2, 1 + 0.28) * advantages)
    factor = torch.ones_like(old) if cap is None else (old - engine).clamp(-20, 20).exp().clamp(max=cap)
    (-(objective * factor * weights).sum()).backward()
    assert torch.equal(gradient, logprobs.grad)


@pytest.mark.parametrize("name", CASES)
def test_objective_corrects_staleness_as_its_equation(name: str) -> None:
    """min(cap, p_old / p_engine) multiplies each term; an objective of sequences has that of the sequence."""
    settings = CASES[name].model_copy(update={"importance_correction": ImportanceCorrection(enabled=True, cap=1.1)})
    update = draw_update(3, settings)
    _, gradient = parts_of(update)
    _, expected, _ = equation(update)
    torch.testing.assert_close(gradient.double(), expected, rtol=RTOL, atol=0.0)
    _, plain_gradient = parts_of(draw_update(3, CASES[name]))
    assert not torch.allclose(gradient, plain_gradient, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "mean"),
    [("CISPO", "TokenMean"), ("DAPO", "TokenMean"), ("SAPO", "SequenceMean"), ("GSPO", "SequenceMean")],
)
def test_objective_of_the_only_update_has_no_ratio(name: str, mean: str) -> None:
    """With one update per step pi_old is pi, for stale rollouts too: these types differ from GRPO only in the mean."""
    correction = ImportanceCorrection(enabled=name != "GSPO", cap=1.1)  # that of GSPO is of the sequence
    gradients = [
        parts_of(draw_update(8, settings.model_copy(update={"importance_correction": correction}), spread=0.0))[1]
        for settings in (CASES[name], CASES[f"GRPO {mean}"])
    ]
    torch.testing.assert_close(*gradients, rtol=RTOL, atol=0.0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_objective_gradient_is_independent_of_the_distribution(name: str, packed: bool) -> None:
    """Padded or packed, over 1 to n micro-batches, 1 to 4 ranks, in any order: each token has the same gradient."""
    update = draw_update(4, CASES[name], extreme=True)
    rows = update.rows()
    whole, expected = parts_of(update, rows=rows)
    for ranks, budget in ((1, 1), (1, 400), (2, 64), (4, 200), (4, 100_000)):
        parts, gradient = parts_of(update, ranks=ranks, budget=budget, packed=packed, order=budget, rows=rows)
        assert len(parts) > ranks or budget == 100_000
        torch.testing.assert_close(gradient, expected, rtol=RTOL, atol=0.0)
        for metric in ("tokens", "clipped"):
            assert sum(float(part.sums[metric]) for part in parts) == float(whole[0].sums[metric])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("action", ["Mask", "Drop"])
@pytest.mark.parametrize("far", [{1, 6}, {0, 1, 2, 3, 4, 5}, set(range(99))], ids=["two", "a whole group", "all"])
def test_objective_of_rollouts_above_the_gap(name: str, action: Literal["Mask", "Drop"], far: set[int]) -> None:
    """A masked rollout stays in the denominators, a dropped one leaves them, over the micro-batches of two ranks."""
    correction = ImportanceCorrection(enabled=True, cap=1.1, max_sequence_gap=1.0, sequence_gap_action=action)
    update = draw_update(5, CASES[name].model_copy(update={"importance_correction": correction}))
    for number, rollout in enumerate(update.rollouts):
        rollout.far = number in far
    parts, gradient = parts_of(update, ranks=2, budget=150, order=0)
    _, expected, _ = equation(update)
    torch.testing.assert_close(gradient.double(), expected, rtol=RTOL, atol=0.0)
    excluded = sum(len(each.new) for each in update.rollouts if each.far)
    assert sum(float(part.sums["excluded"]) for part in parts) == excluded
    if "distilled_tokens" in parts[0].sums:
        trained = sum(len(each.new) for each in update.rollouts)
        assert sum(float(part.sums["distilled_tokens"]) for part in parts) == trained - excluded
    assert bool(expected.any()) == (len(far) < 99)


@pytest.mark.parametrize("name", ["GRPO", "GSPO", "CISPO", "DrGRPO"])
@pytest.mark.parametrize("estimator", ["K1", "K2", "K3"])
def test_objective_with_a_reference_equals_its_equation(name: str, estimator: Literal["K1", "K2", "K3"]) -> None:
    """The KL term has the weights of the objective's mean; excluded rollouts have none. Over 4 ranks, padded."""
    correction = ImportanceCorrection(enabled=True, cap=1.1, max_sequence_gap=1.0, sequence_gap_action="Drop")
    kl = ReferenceKL(weight=0.1, estimator=estimator)
    update = draw_update(6, CASES[name].model_copy(update={"reference_kl": kl, "importance_correction": correction}))
    update.rollouts[2].far = True
    parts, gradient = parts_of(update, ranks=4, budget=150, packed=False, order=1)
    _, expected, _ = equation(update)
    # The terms of objective and KL may cancel.
    torch.testing.assert_close(gradient.double(), expected, rtol=RTOL, atol=RTOL * float(expected.abs().mean()))
    # The metric is a mean over all tokens, also those of the excluded rollout.
    near = parts_of(draw_update(6, update.settings), ranks=4, budget=150, packed=False, order=1)[0]
    kl_sums = [sum(float(part.sums["reference_kl"]) for part in each) for each in (parts, near)]
    assert kl_sums[0] == pytest.approx(kl_sums[1]) != 0


@pytest.mark.parametrize("estimator", ["K1", "K2", "K3"])
@pytest.mark.parametrize("extreme", [False, True], ids=["near", "extreme"])
@pytest.mark.parametrize("apart", [1e-4, 1.0, 15.0])
def test_kl_term_alone_equals_its_equation(estimator: Literal["K1", "K2", "K3"], extreme: bool, apart: float) -> None:
    """At each token, near the reference, far from it, and beyond the limits of both differences."""
    kl = ReferenceKL(weight=0.1, estimator=estimator)
    update = draw_update(1, CASES["GRPO"].model_copy(update={"reference_kl": kl}), extreme=extreme)
    draw = torch.Generator().manual_seed(2)
    for rollout in update.rollouts:
        rollout.advantage = 0.0
        rollout.reference = rollout.new + apart * torch.randn(len(rollout.new), generator=draw)
    parts, gradient = parts_of(update)
    loss, expected, _ = equation(update)
    assert sum(part.loss.item() for part in parts) == pytest.approx(loss.item(), rel=1e-5)
    # Where the gradient of K1 or K2 is nearly 0, d in float32 has fewer digits of it.
    torch.testing.assert_close(gradient.double(), expected, rtol=RTOL if estimator == "K3" else 1e-5, atol=0.0)


@pytest.mark.parametrize("estimator", ["K1", "K2", "K3"])
def test_kl_estimate_has_the_exact_gradient_on_average(estimator: Literal["K1", "K2", "K3"]) -> None:
    """Over all tokens by their probability, K1 and K3 have the gradient of the divergence, K2 that of its mean."""
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(6, generator=draw, dtype=torch.float64).requires_grad_()
    reference = torch.randn(6, generator=draw, dtype=torch.float64).log_softmax(0)
    log_p = logits.log_softmax(0)
    every = torch.arange(6)
    tokens = Tokens(
        logprobs=log_p,
        old_logprobs=log_p.detach(),
        advantages=torch.zeros(6, dtype=torch.float64),
        trained=torch.ones(6, dtype=torch.bool),
        sequences=every,
        groups=every,
        sequence_tokens=torch.ones(6, dtype=torch.int64),
        counts=Counts(6, 6, 6, torch.ones(6, dtype=torch.int64)),
        reference_logprobs=reference,
    )
    estimate = (log_p.detach().exp() * kl_estimate(tokens, estimator)).sum()
    difference = log_p - reference
    divergence = (log_p.exp() * (difference**2 / 2 if estimator == "K2" else difference)).sum()
    assert estimate.item() == pytest.approx(divergence.item())
    actual, expected = (torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (estimate, divergence))
    torch.testing.assert_close(actual, expected)


ADVANTAGES: dict[str, Callable[[list[float]], list[float]]] = {
    "standardised": lambda r: [(x - sum(r) / len(r)) / (statistics.stdev(r) + 1e-6) for x in r],
    "centred": lambda r: [x - sum(r) / len(r) for x in r],
    "RLOO": lambda r: [x - (sum(r) - x) / (len(r) - 1) for x in r],
    "MaxRL": lambda r: [(x - sum(r) / len(r)) / (sum(r) / len(r)) if sum(r) > 0 else 0.0 for x in r],
}


@pytest.mark.parametrize("rewards", [[1.0, 0.0], [1.0, 0.0, 0.0, 0.25], [1.0, 1.0, 1.0], [0.0, 0.0]])
@pytest.mark.parametrize("kind", KINDS)
def test_objective_advantages_equal_their_equation(kind: str, rewards: list[float]) -> None:
    """The advantages of a group; equal rewards have none."""
    name = {"DrGRPO": "centred", "DPPO": "centred", "RLOO": "RLOO", "MaxRL": "MaxRL"}.get(kind, "standardised")
    settings = CASES[kind]
    group = GroupRewards(rewards, [10] * len(rewards))
    weight = 0.0 if kind == "Distillation" else 1.0
    actual = functions_of(settings.objective).advantages(group, settings)
    assert actual == pytest.approx([weight * value for value in ADVANTAGES[name](rewards)], abs=1e-12)


@pytest.mark.parametrize("rewards", [[1.0], [0.0], [0.25], [0.1] * 7, [1e-9] * 3])
@pytest.mark.parametrize("kind", KINDS)
def test_objective_advantages_of_equal_rewards_are_0(kind: str, rewards: list[float]) -> None:
    """Also of a single rollout: rounding of the mean is not enlarged by a division by the spread of 0."""
    settings = CASES["Distillation with the reward" if kind == "Distillation" else kind]
    actual = functions_of(settings.objective).advantages(GroupRewards(rewards, [10] * len(rewards)), settings)
    assert actual == pytest.approx([0.0] * len(rewards), abs=1e-9)


def test_distillation_has_the_gradient_of_the_reverse_divergence() -> None:
    """Summed over all tokens by their probability: of weight x KL(pi || pi_teacher), after earlier updates too."""
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=draw, dtype=torch.float64).requires_grad_()
    old, teacher = (torch.randn(6, generator=draw, dtype=torch.float64).log_softmax(0) for _ in range(2))
    log_p, every, ones = logits.log_softmax(0), torch.arange(6), torch.ones(6, dtype=torch.int64)
    tokens = Tokens(
        logprobs=log_p,
        old_logprobs=old,
        advantages=torch.zeros(6, dtype=torch.float64),
        trained=ones.bool(),
        sequences=every,
        groups=every,
        sequence_tokens=ones,
        counts=Counts(6, 6, 6, ones),
        reference_logprobs=teacher,
    )
    settings = settings_of("Distillation", **TEACHER, teacher_weight=0.7)
    terms = functions_of(settings.objective).loss(tokens, settings)
    sampled = -(old.exp() * terms.objective).sum()
    divergence = 0.7 * (log_p.exp() * (log_p - teacher)).sum()
    assert sampled.item() == pytest.approx(divergence.item())
    actual, expected = (torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (sampled, divergence))
    torch.testing.assert_close(actual, expected)


def test_rollouts_of_a_drawn_update_have_the_cases() -> None:
    """The draw has what the tests need: one token, the maximum length, equal rewards, and ratios beyond the clips."""
    update = draw_update(0, CASES["GRPO"], extreme=True)
    lengths = [len(each.mask) for each in update.rollouts]
    assert (min(lengths), max(lengths)) == (1, MOST)
    equal: list[list[DrawnRollout]] = [group for group in update.groups if len({each.reward for each in group}) == 1]
    assert len(equal) == 2
    assert max(float((each.new - each.old).abs().max()) for each in update.rollouts) > 20
