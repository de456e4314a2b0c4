"""Drawn updates for tests of objectives: sequences with rewards and log-probabilities, and their micro-batches.

The token ids of an update are unique, so that the values of each trained token are found by its target.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rstar2_train.api.objectives import ObjectiveSpec
from rstar2_train.api.stages import GRPOSettings, ImportanceCorrection
from rstar2_train.grpo_roc.loss import LossParts, policy_loss
from rstar2_train.grpo_roc.objectives import functions_of
from rstar2_train.grpo_roc.tokens import GroupRewards
from rstar2_train.trainer.batching import BatchRow, MicroBatch, distribute_rows, grpo_updates
from rstar2_train.trainer.objective_input import kept_counts, kept_sums, objective_tokens
from rstar2_train.trainer.transfers import on_device
from rstar2_train.trainer.types import TokenSequence

CPU = torch.device("cpu")
MOST = 300
"""Tokens of the longest response."""


def settings_of(kind: str, *, correction: ImportanceCorrection | None = None, **fields: object) -> GRPOSettings:
    """Return the settings of a stage with this objective."""
    spec = ObjectiveSpec.model_validate({"type": kind, **fields})
    return GRPOSettings(
        objective=spec.settings(),
        max_response_tokens=MOST,
        importance_correction=correction or ImportanceCorrection(enabled=False),
    )


@dataclass
class DrawnRollout:
    """One rollout; the tensors have one value per token that the model sampled."""

    group: int
    reward: float
    mask: list[bool]
    """Of the response: False for tool output."""
    new: Tensor
    old: Tensor
    engine: Tensor
    reference: Tensor
    """Log-probabilities of the reference policy."""
    advantage: float = 0.0
    far: bool = False
    """Whether its gap to the engine is above the limit."""


@dataclass
class DrawnUpdate:
    """The rollouts of an update, by group."""

    settings: GRPOSettings
    rollouts: list[DrawnRollout] = field(default_factory=list)

    @property
    def groups(self) -> list[list[DrawnRollout]]:
        """The rollouts of each group."""
        last = max(each.group for each in self.rollouts)
        return [[each for each in self.rollouts if each.group == number] for number in range(last + 1)]

    def rows(self) -> tuple[list[BatchRow], dict[int, int]]:
        """Return the rows of the update, and the place of each target in the concatenated tensors of the rollouts."""
        at, place, groups = 1, 0, []
        places: dict[int, int] = {}
        for group in self.groups:
            sequences = []
            for rollout in group:
                ids = np.arange(at, at + 2 + len(rollout.mask), dtype=np.int32)
                mask = np.array([False, False, *rollout.mask])
                for target in ids[mask]:
                    places[int(target)] = place
                    place += 1
                engine = np.zeros(len(ids), np.float32)
                engine[mask] = rollout.engine.numpy()
                sequences.append(TokenSequence(ids, mask, advantage=rollout.advantage, engine_logprobs=engine))
                at += len(ids)
            groups.append(sequences)
        (update,) = grpo_updates(groups, updates=1, seed=0)
        return [row for group in update for row in group], places


def draw_update(
    seed: int, settings: GRPOSettings, *, groups: int = 5, spread: float = 0.4, extreme: bool = False
) -> DrawnUpdate:
    """Return an update with advantages by the objective's own function.

    Group 0 is all correct, group 1 all wrong. One rollout has one token, one the maximum. `spread`: standard deviation
    of the log ratios; `extreme`: some are +-12 and +-30 too.
    """
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    update = DrawnUpdate(settings)
    for group in range(groups):
        size = draw.randint(2, 5)
        rewards = [float(draw.randint(0, 1)) for _ in range(size)]
        rewards[:2] = [1.0, 0.0]
        rewards = {0: [1.0] * size, 1: [0.0] * size}.get(group, rewards)
        for member, reward in enumerate(rewards):
            length = {0: 1, 1: MOST}.get(member, draw.randint(1, MOST)) if group == 2 else draw.randint(1, 60)
            mask = [True, *(draw.random() < 0.7 for _ in range(length - 1))]
            tokens = sum(mask)
            # Near 0 on average: the float32 difference of two log-probabilities is then a number of few digits.
            old = -6 * torch.rand(tokens, generator=generator) - 0.01
            moved = spread * torch.randn(tokens, generator=generator)
            if extreme:
                for place in range(0, tokens, 7):
                    moved[place] = draw.choice((-30.0, -12.0, 12.0, 30.0))
            engine = old + 0.3 * torch.randn(tokens, generator=generator)
            reference = old + 0.5 * torch.randn(tokens, generator=generator)
            update.rollouts.append(DrawnRollout(group, reward, mask, old + moved, old, engine, reference))
    for members in update.groups:
        rewards_of = GroupRewards([each.reward for each in members], [len(each.mask) for each in members])
        values = functions_of(settings.objective).advantages(rewards_of, settings)
        for rollout, value in zip(members, values, strict=True):
            rollout.advantage = value
    return update


def parts_of(
    update: DrawnUpdate,
    *,
    ranks: int = 1,
    budget: int = 100_000,
    packed: bool = True,
    order: int | None = None,
    rows: tuple[Sequence[BatchRow], dict[int, int]] | None = None,
) -> tuple[list[LossParts], Tensor]:
    """Return the loss parts of all micro-batches of all ranks, and the sum of their gradients per trained token.

    `order`: seed of the order of the rows; None: by group.
    """
    members, places = rows or update.rows()
    members = list(members)
    if order is not None:
        random.Random(order).shuffle(members)
    new = torch.cat([each.new for each in update.rollouts]).requires_grad_()
    old = torch.cat([each.old for each in update.rollouts])
    reference = torch.cat([each.reference for each in update.rollouts])
    far = torch.cat([torch.full(each.new.shape, each.far) for each in update.rollouts])
    batches, excluded = [], []
    for share in distribute_rows(members, ranks=ranks, tokens_per_micro_batch=budget, packed=packed):
        for batch, index in zip(on_device(share, CPU), _places(share, places), strict=True):
            batches.append((batch, index))
            excluded.append((index >= 0) & far[index.clamp(min=0)])
    counts = None
    if update.settings.importance_correction.drops_sequences:
        sums = [kept_sums(batch, dropped) for (batch, _), dropped in zip(batches, excluded, strict=True)]
        counts = kept_counts(torch.stack(sums).sum(dim=0), CPU)
    parts = []
    for (batch, index), dropped in zip(batches, excluded, strict=True):
        # Padding rows have targets of no rollout: their values must not matter.
        known = index >= 0
        logprobs = torch.where(known, new[index.clamp(min=0)], -1e3)
        old_logprobs = torch.where(known, old[index.clamp(min=0)], -5.0)
        frozen = torch.where(known, reference[index.clamp(min=0)], -7.0)
        tokens = objective_tokens(batch, logprobs, old_logprobs, dropped if counts else None, counts, frozen)
        parts.append(
            policy_loss(
                tokens,
                update.settings,
                engine_logprobs=batch.engine_logprobs,
                excluded=dropped,
            )
        )
    torch.stack([part.loss for part in parts]).sum().backward()
    assert new.grad is not None
    return parts, new.grad


def _places(share: Sequence[MicroBatch], places: dict[int, int]) -> Iterator[Tensor]:
    for batch in share:
        yield torch.tensor([places.get(int(target), -1) if batch.sequences else -1 for target in batch.targets])
