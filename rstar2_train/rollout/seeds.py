"""Random seeds by name: the same run, step, prompt, sample and turn draw the same numbers, whatever ran before them.

Used for every request to an engine, so that a resumed step samples as the interrupted one would have. Pure.
"""

from __future__ import annotations

import hashlib

_BITS = 63


def derive(*parts: int | str) -> int:
    """A seed in 0 .. 2^63 - 1 from the parts of a name; other parts, other seed. 1 and "1" differ."""
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> (64 - _BITS)
