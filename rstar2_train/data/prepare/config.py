"""The thresholds of the cleaning rules; their defaults are those of `rstar2 data prepare`.

Used by `cli/data.py` and `pipeline.py`. Imports no heavy module, so that `rstar2 --help` is fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2_train.data.readers import DataError


@dataclass(frozen=True, slots=True)
class PrepareSettings:
    """Thresholds of the rules for problems."""

    max_digits: int = 20
    """Maximum digits of an answer; every 64-bit integer passes. The paper (§4.2) gives no figure, only an example that
    it dropped: 6.5e27330467."""
    similarity: float = 0.7
    """Minimum Jaccard similarity of word pairs of two near duplicates. At 0.7, one word in twelve may differ, or 40 %
    of the words may be added. The paper has no such rule."""
    agree: int = 2
    """Minimum sampled answers that equal the label, of the 16 that the paper samples (§4.2)."""

    def __post_init__(self) -> None:
        """Raises DataError for a threshold out of range."""
        if not 0 < self.similarity <= 1:
            raise DataError(f"--similarity must be above 0 and at most 1, got {self.similarity}")
        if self.max_digits < 1 or self.agree < 1:
            raise DataError(f"--max-digits and --agree must be at least 1, got {self.max_digits} and {self.agree}")
