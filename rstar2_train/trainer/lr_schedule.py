"""Learning rates as pure functions of the step. The stages compute them and pass them to the trainer.

The optimiser has no schedule, so a resumed stage needs only its step number to continue.
"""

from __future__ import annotations

import math


def warmup(step: int, *, peak: float, warmup_steps: int) -> float:
    """Return the rate of 0-based `step`: linear warm-up, then constant (paper §4.3: 20 rollout steps).

    The first step has peak / warmup_steps, the second twice that.
    """
    _check(step, warmup_steps)
    return peak * min(1.0, (step + 1) / warmup_steps) if warmup_steps else peak


def cosine(step: int, *, peak: float, total_steps: int, warmup_steps: int, min_ratio: float = 0.0) -> float:
    """Return the rate of `step`: linear warm-up, then half a cosine from `peak` to `peak * min_ratio` (paper §4.1).

    Args:
        step: 0-based; steps after the last one have the last rate.
        peak: the highest rate.
        total_steps: steps of the stage, at least 1.
        warmup_steps: how many of them are warm-up.
        min_ratio: the last rate as a share of the peak.
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
