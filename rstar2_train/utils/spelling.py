"""Names of fields in another spelling: another case, other spaces and marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

_MARKS = re.compile(r"[\W_]")


def spelled(names: Iterable[str], fields: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (name, field) for each name that is one of `fields` in any case, with any spaces and marks."""
    spellings = _spellings(fields)
    for name in names:
        if field := spellings.get(_spelling(name)):
            yield name, field


@lru_cache(maxsize=8)
def _spellings(fields: tuple[str, ...]) -> dict[str, str]:
    return {_spelling(field): field for field in fields}


@lru_cache(maxsize=4096)
def _spelling(name: str) -> str:
    return _MARKS.sub("", name).casefold()
