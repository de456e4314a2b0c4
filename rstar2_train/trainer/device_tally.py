"""Metrics of the micro-batches, added on the device: the host reads them once per update, and does not wait before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rstar2_train.trainer.types import MetricTally


@dataclass(slots=True)
class DeviceTally:
    """Sums, maxima and the histogram of gaps, in float64 on the device."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)
    gaps: Tensor | None = None

    def add(self, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor], gaps: Tensor | None = None) -> None:
        """Add the scalars of a micro-batch."""
        for name, scalar in sums.items():
            value = scalar.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        for name, scalar in maxima.items():
            value = scalar.detach().double()
            self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value
        if gaps is not None and len(gaps):
            self.gaps = gaps if self.gaps is None else self.gaps + gaps

    def read(self) -> MetricTally:
        """Return the values; one transfer from the device."""
        scalars = [*self.sums.values(), *self.maxima.values()]
        if not scalars:
            return MetricTally()
        parts = [torch.stack(scalars), *([] if self.gaps is None else [self.gaps])]
        values: list[float] = torch.cat(parts).tolist()
        first, second = len(self.sums), len(scalars)
        return MetricTally(
            sums=dict(zip(self.sums, values[:first], strict=True)),
            maxima=dict(zip(self.maxima, values[first:second], strict=True)),
            gaps=values[second:],
        )
