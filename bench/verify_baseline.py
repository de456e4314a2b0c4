"""Plain math-verify on the pairs of bench/verify.py: its verdicts, and a cache of them in the user's folder.

The verdicts take most of the time of `make bench-verify`, and change only with the version of math-verify.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import resource
from collections.abc import Iterable
from typing import Any

from rstar2_train.utils.files import cache_folder

MAX_MEMORY_BYTES = 8 << 30
"""Address space of a worker. math-verify may compute a power of a power."""


def limit_memory() -> None:
    """Give this process a MemoryError above MAX_MEMORY_BYTES, which counts as refused, in place of a kill signal."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def accepted_by_math_verify(answer: str, gold: str) -> bool:
    """Return whether math-verify with its defaults accepts an answer."""
    import math_verify

    try:
        return bool(math_verify.verify(_parsed(gold), math_verify.parse(f"${answer}$")))
    except Exception:
        return False


@functools.lru_cache(maxsize=8)
def _parsed(gold: str) -> list[Any]:
    import math_verify

    return math_verify.parse(f"${gold}$")


class BaselineCache:
    """The verdicts of math-verify from earlier runs: a file with one JSON list per pair."""

    def __init__(self) -> None:
        self.path = cache_folder() / f"bench-math-verify-{importlib.metadata.version('math-verify')}.jsonl"
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self.verdicts = {(gold, answer): accepted for gold, answer, accepted in map(json.loads, lines)}

    def add(self, verdicts: Iterable[tuple[str, str, bool | None]]) -> None:
        """Save new (gold, answer, accepted) verdicts; None: math-verify was not asked."""
        new = {(gold, answer): accepted for gold, answer, accepted in verdicts if accepted is not None}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for (gold, answer), accepted in new.items():
                if (gold, answer) not in self.verdicts:
                    file.write(json.dumps([gold, answer, accepted]) + "\n")
        self.verdicts |= new
