"""Bin packing of sequences into micro-batches without padding. Pure; the standard library only.

A bin has a capacity in tokens. All ranks run the same number of bins, in lockstep, so the bins of one turn should have
the same size. The fill is the share of the capacity of all bins that sequences occupy.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence


def pack_bins(lengths: Sequence[int], *, capacity: int, ranks: int = 1) -> list[list[int]]:
    """Return the indices of the sequences of each bin, the fullest bin first.

    The number of bins is the smallest that best-fit decreasing finds, rounded up to a multiple of `ranks` unless there
    are fewer sequences. The sequences are then spread over the bins: the longest first, each into the emptiest bin.

    Args:
        lengths: tokens of each sequence, at least 1. A sequence longer than the capacity has its own bin.
        capacity: tokens of a bin.
        ranks: number of ranks that share the bins.
    """
    tight = _best_fit(lengths, capacity)
    if not tight:
        return []
    count = min(-(-len(tight) // ranks) * ranks, len(lengths))
    bins = _spread(lengths, capacity, count) or tight
    return sorted(bins, key=lambda members: sum(lengths[index] for index in members), reverse=True)


def fill(lengths: Sequence[int], bins: int, *, capacity: int) -> float:
    """Return the share of the bins' capacity that the sequences occupy."""
    return sum(lengths) / (bins * capacity)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True)


def _best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put each sequence, the longest first, into the fullest bin that has space for it."""
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (free tokens, bin), sorted
    for index in _longest_first(lengths):
        position = bisect.bisect_left(free, (lengths[index], -1))
        if position < len(free):
            space, chosen = free.pop(position)
        else:
            space, chosen = capacity, len(bins)
            bins.append([])
        bins[chosen].append(index)
        bisect.insort(free, (space - lengths[index], chosen))
    return bins


def _spread(lengths: Sequence[int], capacity: int, count: int) -> list[list[int]] | None:
    """Put each sequence, the longest first, into the emptiest of `count` bins; None if a bin would overflow."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for index in _longest_first(lengths):
        used, number = heapq.heappop(heap)
        if used and used + lengths[index] > capacity:
            return None
        bins[number].append(index)
        heapq.heappush(heap, (used + lengths[index], number))
    return bins
