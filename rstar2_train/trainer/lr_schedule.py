"""Learning rates as pure functions of the step; the drivers compute them, the trainer is told.

Keeping the schedule out of the optimiser means that a resumed run needs only its step number to continue it.
"""

from __future__ import annotations

import math


def warmup(step: int, *, peak: float, warmup_steps: int) -> float:
    """Linear warm-up, then constant: the rate of 0-based `step` (paper §4.3: 20 rollout steps).

    The first step already learns: peak / warmup_steps, then twice that, and so on.
    """
    _check(step, warmup_steps)
    return peak * min(1.0, (step + 1) / warmup_steps) if warmup_steps else peak


def cosine(step: int, *, peak: float, total_steps: int, warmup_steps: int, min_ratio: float = 0.0) -> float:
    """Linear warm-up, then half a cosine from `peak` to `peak * min_ratio` at the last step (paper §4.1).

    Args:
        step: 0-based; steps past the end keep the last rate.
        peak: the highest rate.
        total_steps: steps of the stage, at least 1.
        warmup_steps: of these, steps of warm-up.
        min_ratio: where the cosine ends, as a share of the peak.
    """
    _check(step, warmup_steps)
    if total_steps < 1:
        raise ValueError(f"total_steps must be at least 1, not {total_steps}")
    if step < warmup_steps:
        return warmup(step, peak=peak, warmup_steps=warmup_steps)
    falling = max(1, total_steps - 1 - warmup_steps)
    progress = min(1.0, (step - warmup_steps) / falling)
    return peak * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))


def _check(step: int, warmup_steps: int) -> None:
    if step < 0 or warmup_steps < 0:
        raise ValueError(f"step and warmup_steps must not be negative: {step}, {warmup_steps}")
