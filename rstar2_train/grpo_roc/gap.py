"""The histogram of the gap between trainer and engine, |log p_trainer - log p_engine|, in nats.

The ranks count the tokens per bin (`loss`); the orchestrator's side adds the counts and reads the quantiles. Imports
only the standard library.
"""

from __future__ import annotations

from collections.abc import Sequence

GAP_EDGES = [10 ** (exponent / 32) for exponent in range(-7 * 32, 32 + 1)]
"""Upper edges of the bins, from 1e-7 to 10; adjacent edges differ by 7.5 %. One more bin has all larger gaps."""


def gap_quantile(counts: Sequence[float], share: float) -> float:
    """Return the upper edge of the first bin up to which the bins have at least `share` of the tokens.

    Return the largest edge if that is the bin of larger gaps.
    """
    needed, seen = share * sum(counts), 0.0
    for edge, count in zip(GAP_EDGES, counts, strict=False):
        seen += count
        if seen >= needed:
            return edge
    return GAP_EDGES[-1]
