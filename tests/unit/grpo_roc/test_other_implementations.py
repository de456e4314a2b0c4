"""The objectives against the formulas of TRL, verl and prime-rl on the same rollouts: what is equal, and what differs.

Transcribed from the equations that the sources compute, in float64, one sequence at a time:
TRL 1.10.0.dev0 (commit f2cd5771: trl/trainer/grpo_trainer.py, rloo_trainer.py), verl 0.10.0.dev (commit 1dda039b:
verl/trainer/ppo/core_algos.py, verl/trainer/distillation/losses.py), prime-rl 0.8.1.dev9 (commit 559b4477:
src/prime_rl/trainer/rl/loss.py). docs/objectives.md has the table of the differences.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from rstar2_train.api.objectives import ReferenceKL, Teacher
from rstar2_train.grpo_roc.objectives import functions_of
from rstar2_train.grpo_roc.tokens import GroupRewards
from tests.support.drawn_updates import MOST, DrawnRollout, DrawnUpdate, draw_update, parts_of, settings_of

RTOL = 1e-6
TEACHER = {"teacher": Teacher(source="teacher")}
Loss = Callable[[Tensor, DrawnRollout], Tensor]
"""Log-probabilities of one sequence and its rollout -> loss of each token."""


def clipped(ratio: Tensor, advantage: float | Tensor, low: float, high: float) -> Tensor:
    """Both libraries: -min(r A, clip(r) A)."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def ratio(new: Tensor, rollout: DrawnRollout) -> Tensor:
    return torch.exp(new - rollout.old.double())


def ppo(low: float, high: float, dual: float | None = None) -> Loss:
    """TRL: loss types grpo, bnpo, dr_grpo, dapo. verl: vanilla, for A < 0 at most `dual` times -A (dual clip)."""

    def loss(new: Tensor, rollout: DrawnRollout) -> Tensor:
        values = clipped(ratio(new, rollout), rollout.advantage, low, high)
        return values if dual is None or rollout.advantage >= 0 else values.clamp(max=-rollout.advantage * dual)

    return loss


def sequence_ppo(low: float, high: float) -> Loss:
    """TRL: importance_sampling_level sequence."""

    def loss(new: Tensor, rollout: DrawnRollout) -> Tensor:
        return clipped((new - rollout.old.double()).mean().exp(), rollout.advantage, low, high).expand(len(new))

    return loss


def verl_gspo(low: float, high: float) -> Loss:
    """verl: the value of the sequence's ratio, the gradient of the token, and log ratios of at most 10."""

    def loss(new: Tensor, rollout: DrawnRollout) -> Tensor:
        mean = (new - rollout.old.double()).mean().detach()
        return clipped((new - new.detach() + mean).clamp(max=10.0).exp(), rollout.advantage, low, high)

    return loss


def cispo(low: float | None, high: float) -> Loss:
    """TRL: `high` is the largest ratio, without a lower bound (None). verl: 1 - low to 1 + high."""

    def loss(new: Tensor, rollout: DrawnRollout) -> Tensor:
        values = ratio(new, rollout)
        bounded = values.clamp(max=high) if low is None else values.clamp(1 - low, 1 + high)
        return -bounded.detach() * rollout.advantage * new

    return loss


def sapo(new: Tensor, rollout: DrawnRollout) -> Tensor:
    """TRL and verl: sigma(tau (r - 1)) 4 / tau A; tau 1 for A > 0, else 1.05."""
    tau = 1.0 if rollout.advantage > 0 else 1.05
    return -torch.sigmoid(tau * (ratio(new, rollout) - 1)) * 4 / tau * rollout.advantage


def dppo(new: Tensor, rollout: DrawnRollout) -> Tensor:
    """verl: dppo_tv with its divergence 0.2 and clip_ratio_c 20."""
    change = (new.exp() - rollout.old.double().exp()).detach()
    valid = change <= 0.2 if rollout.advantage > 0 else change >= -0.2
    return -rollout.advantage * ratio(new, rollout).clamp(max=20.0).detach() * new * valid


def plain(new: Tensor, rollout: DrawnRollout) -> Tensor:
    return -ratio(new, rollout) * rollout.advantage


def verl_distillation(clip: float) -> Loss:
    """verl: loss_mode k1 with use_policy_gradient: -k1, within +-10, is the advantage of the vanilla loss."""

    def loss(new: Tensor, rollout: DrawnRollout) -> Tensor:
        advantage = -(new - rollout.reference.double()).clamp(-10, 10).detach()
        values = clipped(ratio(new, rollout), advantage, clip, clip)
        return torch.where(advantage < 0, torch.minimum(values, -3.0 * advantage), values)

    return loss


def prime_distillation(new: Tensor, rollout: DrawnRollout) -> Tensor:
    """prime-rl: ref_kl. Its ratio is to the engine: here, as on policy, that of the start of the step."""
    behind = (rollout.reference.double() - new).detach()
    kept = ((new.exp() - rollout.old.double().exp()).detach() >= -0.2).double()
    return -kept * behind * ratio(new, rollout) + 1e-3 * (new - rollout.old.double()) ** 2


def token_mean(losses: Sequence[Tensor], tokens: int) -> Tensor:
    """TRL: dapo, cispo, by the tokens of the global batch. verl: token-mean, by those of the global mini-batch."""
    return torch.cat(list(losses)).sum() / tokens


def sequence_mean(losses: Sequence[Tensor], tokens: int) -> Tensor:
    """TRL: grpo, sapo. verl: seq-mean-token-mean."""
    return torch.stack([values.mean() for values in losses]).mean()


def micro_token_mean(losses: Sequence[Tensor], tokens: int) -> Tensor:
    """TRL: bnpo, by the tokens of the micro-batch."""
    return torch.cat(list(losses)).mean()


def constant_mean(losses: Sequence[Tensor], tokens: int) -> Tensor:
    """TRL: dr_grpo. verl: seq-mean-token-sum-norm with loss_scale_factor."""
    return torch.cat(list(losses)).sum() / len(losses) / MOST


def gradient_of(
    update: DrawnUpdate, loss: Loss, mean: Callable[[Sequence[Tensor], int], Tensor], *borders: int
) -> Tensor:
    """Return the gradient of each token. `borders`: where the sequences are split into micro-batches.

    TRL divides the loss of a micro-batch by their number, unless its divisor already is that of the global batch.
    """
    new = [each.new.double().requires_grad_() for each in update.rollouts]
    losses = [loss(values, rollout) for values, rollout in zip(new, update.rollouts, strict=True)]
    parts = [losses[start:stop] for start, stop in zip((0, *borders), (*borders, len(losses)), strict=True)]
    total = torch.stack([mean(part, sum(map(len, losses))) for part in parts]).sum()
    (total if mean is token_mean else total / len(parts)).backward()
    return torch.cat([values.grad for values in new if values.grad is not None])


EQUAL = {
    "TRL grpo": (settings_of("GRPO", aggregation="SequenceMean", clip_high=0.2), ppo(0.2, 0.2), sequence_mean),
    "TRL dapo": (settings_of("DAPO"), ppo(0.2, 0.28), token_mean),
    "TRL bnpo, one micro-batch": (settings_of("DAPO"), ppo(0.2, 0.28), micro_token_mean),
    "TRL dr_grpo": (settings_of("DrGRPO"), ppo(0.2, 0.2), constant_mean),
    "TRL grpo, level sequence": (settings_of("GSPO"), sequence_ppo(3e-4, 4e-4), sequence_mean),
    "TRL cispo, epsilon_high 5": (settings_of("CISPO"), cispo(None, 5.0), token_mean),
    "TRL sapo": (settings_of("SAPO"), sapo, sequence_mean),
    "verl gspo": (settings_of("GSPO"), verl_gspo(3e-4, 4e-4), sequence_mean),
    "verl gspo, wide": (settings_of("GSPO", clip_low=0.2, clip_high=0.2), verl_gspo(0.2, 0.2), sequence_mean),
    "verl cispo": (settings_of("CISPO", clip_low=0.2, clip_high=0.2), cispo(0.2, 0.2), token_mean),
    "verl dppo_tv": (settings_of("DPPO"), dppo, token_mean),
    "verl sapo": (settings_of("SAPO"), sapo, sequence_mean),
}


@pytest.mark.parametrize("name", EQUAL)
def test_objective_equals_other_implementations(name: str) -> None:
    """In one micro-batch, with the same advantages: each token has the same gradient."""
    settings, loss, mean = EQUAL[name]
    update = draw_update(7, settings)
    _, gradient = parts_of(update, ranks=2, budget=150)
    expected = gradient_of(update, loss, mean)
    torch.testing.assert_close(gradient.double(), expected, rtol=RTOL, atol=RTOL * float(expected.abs().max()))


def test_trl_means_depend_on_the_micro_batches() -> None:
    """grpo, bnpo and dr_grpo of TRL weigh micro-batches equally; dapo has the tokens of the batch, as here."""
    update = draw_update(7, settings_of("DAPO"))
    loss = ppo(0.2, 0.28)
    for mean in (sequence_mean, micro_token_mean, constant_mean):
        whole, split = gradient_of(update, loss, mean), gradient_of(update, loss, mean, 2)
        assert float((whole - split).norm()) > 0.05 * float(whole.norm())
    torch.testing.assert_close(gradient_of(update, loss, token_mean), gradient_of(update, loss, token_mean, 2))


def test_verl_vanilla_has_a_dual_clip() -> None:
    """The gradients differ exactly at tokens with a negative advantage and a ratio above clip_ratio_c, 3."""
    update = draw_update(8, settings_of("DAPO"), spread=0.9)
    _, gradient = parts_of(update)
    theirs = gradient_of(update, ppo(0.2, 0.28, dual=3.0), token_mean)
    far = torch.cat([(ratio(each.new.double(), each) > 3.0) & (each.advantage < 0) for each in update.rollouts])
    assert 0 < int(far.sum()) < len(far) / 4
    assert not theirs[far].any() and bool(gradient[far].all())
    torch.testing.assert_close(gradient.double()[~far], theirs[~far], rtol=RTOL, atol=0.0)


def test_rloo_is_trl_rloo_up_to_a_constant_on_policy() -> None:
    """TRL's RLOOTrainer clips the ratio of the whole sequence, a product, and takes the mean over sequences."""
    update = draw_update(9, settings_of("RLOO"), spread=0.0)
    _, gradient = parts_of(update)

    def product(new: Tensor, rollout: DrawnRollout) -> Tensor:
        return clipped((new - rollout.old.double()).sum().exp(), rollout.advantage, 0.2, 0.2)[None]

    theirs = gradient_of(update, product, sequence_mean)
    constant = len(update.rollouts) / len(theirs)
    torch.testing.assert_close(gradient.double(), theirs * constant, rtol=RTOL, atol=0.0)


@pytest.mark.parametrize("corrected", [False, True])
def test_reference_kl_k3_is_that_of_trl_with_bias_correction(corrected: bool) -> None:
    """TRL multiplies K3 by the ratio only with use_bias_correction_kl; verl's k3 has no ratio."""
    kl = ReferenceKL(weight=0.1, estimator="K3")
    settings = settings_of("DAPO").model_copy(update={"reference_kl": kl})
    update = draw_update(10, settings)
    _, gradient = parts_of(update)

    def loss(new: Tensor, rollout: DrawnRollout) -> Tensor:
        d = rollout.reference.double() - new
        estimate = (d.exp() - d - 1) * (ratio(new, rollout) if corrected else 1)
        return ppo(0.2, 0.28)(new, rollout) + 0.1 * estimate

    expected = gradient_of(update, loss, token_mean)
    equal = torch.allclose(gradient.double(), expected, rtol=RTOL, atol=RTOL * float(expected.abs().max()))
    assert equal == corrected


def test_distillation_is_that_of_verl_and_prime_rl_on_policy() -> None:
    """On policy all three are equal; later prime-rl masks and regularises, and verl clips."""
    update = draw_update(11, settings_of("Distillation", **TEACHER), spread=0.0)
    _, gradient = parts_of(update)
    for loss in (verl_distillation(0.2), prime_distillation):
        expected = gradient_of(update, loss, token_mean)
        torch.testing.assert_close(gradient.double(), expected, rtol=RTOL, atol=RTOL * float(expected.abs().max()))
    later = draw_update(11, settings_of("Distillation", **TEACHER), spread=0.4)
    _, gradient = parts_of(later)
    theirs = gradient_of(later, prime_distillation, token_mean)
    pairs = [(each.new.double(), each.old.double()) for each in later.rollouts]
    masked = torch.cat([new.exp() - old.exp() < -0.2 for new, old in pairs])
    drift = torch.cat([2e-3 * (new - old) for new, old in pairs]) / len(masked)
    assert 0 < int(masked.sum()) < len(masked) / 2
    expected = torch.where(masked, 0.0, gradient.double()) + drift
    torch.testing.assert_close(expected, theirs, rtol=RTOL, atol=RTOL * float(theirs.abs().max()))
    verl = gradient_of(later, verl_distillation(0.2), token_mean)
    assert 0 < int((verl == 0).sum()) < len(verl)
    kept = verl != 0
    torch.testing.assert_close(gradient.double()[kept], verl[kept], rtol=RTOL, atol=RTOL * float(verl.abs().max()))


@pytest.mark.parametrize("rewards", [[1.0, 0.0, 0.0, 0.25], [1.0, 1.0], [0.5]])
def test_advantages_of_other_implementations(rewards: list[float]) -> None:
    """The std of TRL has + 1e-4; verl's advantage of a single rollout is its reward. All else is equal."""
    group = GroupRewards(rewards, [10] * len(rewards))
    ours = {
        kind: functions_of(settings_of(kind).objective).advantages(group, settings_of(kind))
        for kind in ("GRPO", "DrGRPO", "RLOO")
    }
    mean, size = statistics.fmean(rewards), len(rewards)
    centred = [reward - mean for reward in rewards]
    assert ours["DrGRPO"] == pytest.approx(centred)  # TRL: scale_rewards none. verl: norm_adv_by_std_in_grpo false.
    if size == 1:
        assert ours["GRPO"] == ours["RLOO"] == [0.0] != rewards  # verl: mean 0 and std 1 for a single rollout
        return
    spread = statistics.stdev(rewards)
    assert ours["GRPO"] == pytest.approx([value / (spread + 1e-6) for value in centred], abs=1e-12)  # verl
    assert ours["GRPO"] == pytest.approx([value / (spread + 1e-4) for value in centred], rel=1e-3)  # TRL
    assert ours["RLOO"] == pytest.approx([r - (sum(rewards) - r) / (size - 1) for r in rewards])  # TRL and verl
