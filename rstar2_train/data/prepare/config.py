"""The thresholds of the cleaning rules, which `rstar2 data prepare` shows as its defaults.

Read by cli/data.py and pipeline.py; imports nothing heavy, so that `rstar2 --help` stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_train.data.readers import DataError


@dataclass(frozen=True, slots=True)
class PrepareSettings:
    """What the rules on problems measure by."""

    max_digits: int = 20
    """Digits of the longest answer that is kept: every 64-bit number. The paper gives no figure (§4.2), but an answer
    that it dropped: 6.5e27330467."""
    similarity: float = 0.7
    """Jaccard similarity of word pairs from which on two problems are near duplicates: about one word in twelve is
    changed, or four tenths are added. Not the paper's, which names no such rule."""
    agree: int = 2
    """Sampled answers that must be the labelled one, of the 16 that the paper samples (§4.2)."""

    def __post_init__(self) -> None:
        """Raises DataError for a threshold that makes no sense."""
        if not 0 < self.similarity <= 1:
            raise DataError(f"--similarity is {self.similarity}; it must be above 0 and at most 1")
        if self.max_digits < 1 or self.agree < 1:
            raise DataError(f"--max-digits ({self.max_digits}) and --agree ({self.agree}) must be at least 1")
