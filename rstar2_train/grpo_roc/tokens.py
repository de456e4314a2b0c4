"""The data that an objective reads, and its result: the rewards of a group, the trained tokens of a micro-batch, terms.

The loss of an update is minus the sum over its tokens of weight x objective. The weights come from the counts of the
whole update, taken before it is split: so the sum over micro-batches and ranks is exact for any distribution of the
sequences. A sequence is never split. Imports no torch: the orchestrator reads objectives without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from rstar2_train.api.objectives import Aggregation

LOG_RATIO_LIMIT = 20.0
"""Bound of log ratios before exp: an overflow would change a masked token's 0 to NaN."""


RatioOf = Literal["token", "sequence"]
Array = TypeVar("Array")


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """The kept rollouts of one prompt."""

    rewards: Sequence[float]
    """Reward of each rollout."""
    lengths: Sequence[int]
    """Tokens of each response, tool output included."""


@dataclass(frozen=True, slots=True)
class Counts(Generic[Array]):
    """Denominators of an update: the sequences and tokens that train, over all micro-batches and ranks.

    `Array`: a NumPy array in the batches of the orchestrator, a tensor on the device.
    """

    groups: int
    """Groups with a trained token."""
    sequences: int
    """Sequences with a trained token."""
    tokens: int
    """Trained tokens."""
    group_tokens: Array
    """[groups of the update] trained tokens of each group, int64."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The trained tokens of a micro-batch, sequence by sequence. All tensors have the shape [tokens]."""

    logprobs: Tensor
    """Log-probability of each token under the trained policy, with a gradient."""
    old_logprobs: Tensor
    """The same under the trainer's policy at the start of the step."""
    advantages: Tensor
    """Advantage of the token's rollout."""
    trained: Tensor
    """Whether the token trains; False: padding."""
    sequences: Tensor
    """Index of the token's sequence in the micro-batch, from 0."""
    groups: Tensor
    """Index of the token's group in the update, from 0."""
    sequence_tokens: Tensor
    """[sequences] trained tokens of each sequence, int64."""
    counts: Counts[Tensor]
    """Denominators of the update."""
    reference_logprobs: Tensor | None = None
    """Log-probability of each token under the reference policy: the teacher, or that of grpo.referenceKl."""

    @cached_property
    def log_ratio(self) -> Tensor:
        """log pi - log pi_old, within +-20; 0 for tokens that do not train."""
        difference = (self.logprobs - self.old_logprobs).where(self.trained, 0.0)
        return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    @cached_property
    def ratio(self) -> Tensor:
        """pi / pi_old of each token."""
        return self.log_ratio.exp()

    @cached_property
    def reference_difference(self) -> Tensor:
        """log pi - log pi_reference, within +-20; 0 for tokens that do not train.

        Raises:
            ValueError: if the ranks hold no reference policy.
        """
        if self.reference_logprobs is None:
            raise ValueError("the loss needs the log-probabilities of the teacher or of the reference policy")
        difference = (self.logprobs - self.reference_logprobs).where(self.trained, 0.0)
        return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def sequence_mean(self, values: Tensor) -> Tensor:
        """Return for each token the mean of `values` over the trained tokens of its sequence."""
        wide = values.where(self.trained, 0.0).double()
        sums = wide.new_zeros(len(self.sequence_tokens)).index_add(0, self.sequences, wide)
        # Gathered in float64, so that the backward pass too sums in float64.
        return (sums / self._sequence_counts)[self.sequences].to(values.dtype)

    @cached_property
    def _sequence_counts(self) -> Tensor:
        """[sequences] trained tokens, at least 1; `sequence_tokens` is 0 for rollouts that leave the loss."""
        ones = self.trained.double()
        return ones.new_zeros(len(self.sequence_tokens)).index_add(0, self.sequences, ones).clamp(min=1)

    def weights(self, aggregation: Aggregation) -> Tensor:
        """Return the weight of each token in a mean over the update; 0 for tokens that do not train.

        GroupMean: 1 / (tokens of its group x groups). SequenceMean: 1 / (tokens of its sequence x sequences).
        TokenMean: 1 / tokens.
        """
        counts = self.counts
        if aggregation == "GroupMean":
            return self._inverse((counts.group_tokens * counts.groups)[self.groups])
        if aggregation == "SequenceMean":
            return self._inverse((self.sequence_tokens * counts.sequences)[self.sequences])
        return self.constant_weights(counts.tokens)

    def constant_weights(self, divisor: float) -> Tensor:
        """Return the weight 1 / divisor for each token that trains."""
        return self._inverse(self.trained.double() * divisor)

    def _inverse(self, divisors: Tensor) -> Tensor:
        # In float64, then rounded once. A divisor is 0 only where no token trains.
        inverse = 1.0 / divisors.double()
        return inverse.where(self.trained & (divisors > 0), 0.0).to(self.logprobs.dtype)


@dataclass(frozen=True, slots=True)
class Terms:
    """The result of an objective for the tokens of a micro-batch: tensors of the shape [tokens]."""

    objective: Tensor
    """Value to maximise, with a gradient."""
    weights: Tensor
    """Weight of each token in the update, such as `Tokens.weights`; without a gradient."""
    clipped: Tensor | None = None
    """Whether a clip or mask applies to the token, for the metrics; None: to no token."""
    ratio_of: RatioOf = "token"
    """Whether the staleness correction has the probability ratio of the token, or the mean log ratio of its sequence:
    that of the objective."""
