"""Random seeds derived from names: job, stage, step, prompt, sample and turn give the same seed in every process.

Every request to an engine has such a seed, so that a resumed step samples as the interrupted one would have. Pure.
"""

from __future__ import annotations

import hashlib

_BITS = 63


def derive_seed(*parts: int | str) -> int:
    """Return a seed in 0 .. 2^63 - 1 for a name. Other parts give another seed; 1 and "1" are different parts."""
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> (64 - _BITS)
