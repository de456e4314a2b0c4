"""One figure of a plan: its value, its unit, and the arithmetic that `--explain` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rstar2_train.capacity.fit import gigabytes

Unit = Literal["bytes", "seconds", "count", "tokens", "share", "text"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    section: str
    key: str
    """Name in JSON."""
    label: str
    unit: Unit
    value: float | str
    arithmetic: str = ""
    """The formula with its values."""
    seconds: float = 0.0
    """Seconds that a text contains, for comparisons."""

    @property
    def text(self) -> str:
        """The value with its unit."""
        if isinstance(self.value, str):
            return self.value
        if self.unit == "bytes":
            return gigabytes(self.value)
        if self.unit == "share":
            return f"{self.value:.0%}"
        if self.unit == "seconds":
            return duration(self.value)
        return f"{self.value:,.0f}" if self.value >= 10 or self.value == int(self.value) else f"{self.value:.1f}"


def duration(seconds: float) -> str:
    """Return seconds as text: 0.53 s, 9.1 s, 12.4 min, 3.1 h, 6.9 d."""
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.2f} s" if seconds < 2 else f"{seconds:.1f} s"
