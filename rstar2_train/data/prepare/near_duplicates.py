"""Finds near duplicates: problems with slightly different wording. Exact, deterministic, and linear in practice.

`pipeline.py` adds every problem that passes the other rules. Two problems are near duplicates if they have the same
answer, the same numbers, and word pairs with a Jaccard similarity of at least the threshold. The first one is kept.
"Toss 3 coins" and "Toss 4 coins" differ in a number, so both are kept: such families are common in competitions.

Prefix filtering selects the pairs to compare (Bayardo, Ma, Srikant, "Scaling up all pairs similarity search", 2007). It
is exact, unlike MinHash: two sets of n and m pairs in one order, with similarity >= t, share a member among the first
n - ceil(tn) + 1 and m - ceil(tm) + 1. The order of the pairs is the order of their hashes.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from array import array
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_SPREAD = 0x9E3779B97F4A7C15
_WORD64 = (1 << 64) - 1
_ROUNDING = 1e-9
"""Subtracted before rounding up, so that a float slightly above 7 does not become 8. A longer prefix only costs
time."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A match of a near duplicate with a kept problem."""

    of: int
    """Index of the kept problem, in the order of `add`."""
    similarity: float
    """Jaccard similarity of the word pairs, 0 to 1."""


class NearDuplicates:
    """Collects problems one by one, then finds those to drop.

    Memory: about 4 bytes per distinct word pair, and 12 more bytes for 30 % of them. No text is stored.
    """

    def __init__(self, *, similarity: float) -> None:
        """`similarity`: minimum Jaccard similarity of near duplicates, above 0 and at most 1."""
        self._similarity = similarity
        self._pairs = array("I")
        """Hashes of the word pairs of all problems, in ascending order within each problem."""
        self._ends = array("Q", [0])
        self._keys = array("Q")
        self._marks = array("Q")
        """Lookup keys of the problems: the key of a problem combined with each pair of its prefix."""
        self._owners = array("I")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, words: list[str], answer: str) -> None:
        """Add a problem. `words`: from `normalize.normalized_words`. `answer`: in canonical form."""
        numbers = sorted(word for word in words if word.isdecimal())
        key = _hash64("\n".join([answer, *numbers]))
        pairs = sorted({zlib.crc32(f"{left} {right}".encode()) for left, right in pairwise(words)})
        if not pairs:
            pairs = [zlib.crc32("".join(words).encode())]
        prefix = len(pairs) - math.ceil(self._similarity * len(pairs) - _ROUNDING) + 1
        self._marks.extend((key ^ (pair * _SPREAD)) & _WORD64 for pair in pairs[:prefix])
        self._owners.extend([len(self._keys)] * prefix)
        self._pairs.extend(pairs)
        self._ends.append(len(self._pairs))
        self._keys.append(key)

    def find(self) -> dict[int, Duplicate]:
        """Return the index of each problem to drop -> the first kept problem that it duplicates."""
        dropped: dict[int, Duplicate] = {}
        kept: defaultdict[int, list[int]] = defaultdict(list)
        for index, marks in self._shared_marks():
            candidates = sorted({other for mark in marks for other in kept[mark]})
            compared = (Duplicate(other, self._jaccard(other, index)) for other in candidates)
            duplicate = next((match for match in compared if match.similarity >= self._similarity), None)
            if duplicate is not None:
                dropped[index] = duplicate
                continue
            for mark in marks:
                kept[mark].append(index)
        return dropped

    def _shared_marks(self) -> list[tuple[int, list[int]]]:
        """Return (problem, its marks that other problems share), in the order of `add`. Most problems share none."""
        marks = np.frombuffer(self._marks, dtype=np.uint64)
        owners = np.frombuffer(self._owners, dtype=np.uint32)
        order = np.argsort(marks, kind="stable")
        ordered = marks[order]
        same = ordered[1:] == ordered[:-1]
        shared = np.zeros(len(marks), dtype=bool)
        shared[order[1:][same]] = True
        shared[order[:-1][same]] = True
        by_owner: defaultdict[int, list[int]] = defaultdict(list)
        for owner, mark in zip(owners[shared].tolist(), marks[shared].tolist(), strict=True):
            by_owner[owner].append(mark)
        return list(by_owner.items())

    def _jaccard(self, first: int, second: int) -> float:
        """Return the similarity of the pairs of two problems, or 0 if their answers or numbers differ."""
        if self._keys[first] != self._keys[second]:
            return 0.0
        left, right = self._pairs_of(first), self._pairs_of(second)
        if min(len(left), len(right)) < self._similarity * max(len(left), len(right)):
            return 0.0
        common = len(np.intersect1d(left, right, assume_unique=True))
        return common / (len(left) + len(right) - common)

    def _pairs_of(self, index: int) -> NDArray[np.uint32]:
        start, end = self._ends[index], self._ends[index + 1]
        return np.frombuffer(self._pairs, dtype=np.uint32)[start:end]


def _hash64(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
