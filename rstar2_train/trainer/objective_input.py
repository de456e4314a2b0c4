"""The input of the objective for a micro-batch: its tokens, and the denominators of the kept rollouts.

`step` calls it on the ranks, `objective_check` before a job starts. Imports no model, so that the check starts fast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rstar2_train.grpo_roc.loss import kept_tokens
from rstar2_train.grpo_roc.tokens import Counts, Tokens
from rstar2_train.trainer.transfers import DeviceBatch


def kept_sums(batch: DeviceBatch, excluded: Tensor) -> Tensor:
    """Return the kept tokens of each group of the update in a micro-batch, then the number of its kept sequences."""
    trained = batch.trained
    by_group = kept_tokens(excluded, trained, batch.groups, count=len(batch.counts.group_tokens))
    by_row = kept_tokens(excluded, trained, batch.rows, count=len(batch.row_tokens))
    return torch.cat([by_group, (by_row > 0).sum()[None]])


def kept_counts(sums: Tensor, device: torch.device) -> Counts[Tensor]:
    """Return the denominators of an update from the `kept_sums` of all its micro-batches and ranks, on the host."""
    by_group = sums[:-1]
    return Counts(
        groups=int((by_group > 0).sum()),
        sequences=int(sums[-1]),
        tokens=int(by_group.sum()),
        group_tokens=by_group.to(device),
    )


def objective_tokens(
    batch: DeviceBatch,
    logprobs: Tensor,
    old: Tensor,
    dropped: Tensor | None,
    counts: Counts[Tensor] | None,
    reference: Tensor | None = None,
) -> Tokens:
    """Return the input of the objective.

    `dropped`: tokens of rollouts that leave the denominators, which then are `counts`. `reference`: log-probabilities
    of the reference policy, if the ranks hold one.
    """
    trained, row_tokens = batch.trained, batch.row_tokens
    if dropped is not None:
        row_tokens = kept_tokens(dropped, trained, batch.rows, count=len(row_tokens))
    return Tokens(
        logprobs=logprobs,
        old_logprobs=old,
        advantages=batch.advantages,
        trained=trained,
        sequences=batch.rows,
        groups=batch.groups,
        sequence_tokens=row_tokens,
        counts=counts or batch.counts,
        reference_logprobs=reference,
    )
