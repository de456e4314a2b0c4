"""Finds problems that are another one in slightly different words. Exact, deterministic, and linear in practice.

Beside decontaminate.py; pipeline.py gives it every problem that the other rules have left. Two problems are near
duplicates when they have the same answer, the same numbers, and word pairs whose Jaccard similarity reaches the
threshold. The first one stays. "Toss 3 coins" and "Toss 4 coins" differ in a number and both stay: competition
problems come in such families, and each is a problem of its own.

Which problems to compare is found by prefix filtering (Bayardo, Ma, Srikant, "Scaling up all pairs similarity search",
2007), which misses nothing, unlike MinHash: two sets of n and m pairs in one order, with similarity >= t, share a
member among the first n - ceil(tn) + 1 and m - ceil(tm) + 1. The order here is that of their hashes.
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
"""So that 0.7 * 10, a little above 7 as a float may be, does not become 8: a longer prefix only costs time."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Of what a problem is a near duplicate."""

    of: int
    """Index of the problem that stays, in the order of `add`."""
    similarity: float
    """Jaccard similarity of their word pairs, 0 to 1."""


class NearDuplicates:
    """Takes problems one by one, then says which of them to drop.

    Memory: about 4 bytes a distinct word pair and 12 bytes for three in ten of them; no text is kept.
    """

    def __init__(self, *, similarity: float) -> None:
        """`similarity`: above 0, at most 1."""
        self._similarity = similarity
        self._pairs = array("I")
        """Hashes of all problems' word pairs: ascending in each problem, one problem after the other."""
        self._ends = array("Q", [0])
        self._keys = array("Q")
        self._marks = array("Q")
        """What each problem is looked up by: its key mixed with a pair of its prefix."""
        self._owners = array("I")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, words: list[str], answer: str) -> None:
        """Take in a problem: its words (`words.words`) and its answer in canonical form."""
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
        """Index of each problem to drop -> which earlier problem, itself kept, it repeats (the first such one)."""
        dropped: dict[int, Duplicate] = {}
        kept: defaultdict[int, list[int]] = defaultdict(list)
        for index, marks in self._shared_marks():
            candidates = sorted({other for mark in marks for other in kept[mark]})
            found = (Duplicate(other, self._jaccard(other, index)) for other in candidates)
            duplicate = next((one for one in found if one.similarity >= self._similarity), None)
            if duplicate is not None:
                dropped[index] = duplicate
                continue
            for mark in marks:
                kept[mark].append(index)
        return dropped

    def _shared_marks(self) -> list[tuple[int, list[int]]]:
        """(problem, those of its marks that another one has too), in the order of `add`; most problems have none."""
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

    def _jaccard(self, one: int, other: int) -> float:
        """Similarity of two problems' pairs; 0 when their answers or numbers differ."""
        if self._keys[one] != self._keys[other]:
            return 0.0
        left, right = self._of(one), self._of(other)
        if min(len(left), len(right)) < self._similarity * max(len(left), len(right)):
            return 0.0
        common = len(np.intersect1d(left, right, assume_unique=True))
        return common / (len(left) + len(right) - common)

    def _of(self, index: int) -> NDArray[np.uint32]:
        start, end = self._ends[index], self._ends[index + 1]
        return np.frombuffer(self._pairs, dtype=np.uint32)[start:end]


def _hash64(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
