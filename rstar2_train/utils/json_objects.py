"""Builds JSON objects that have each key once: programs differ in which value of a repeated key they take."""

from __future__ import annotations

from collections import Counter
from typing import Any


class RepeatedKeyError(ValueError):
    """An object has the same key twice. The message names the key."""


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of its keys and values, as `object_pairs_hook` of a decoder. Raises RepeatedKeyError."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise RepeatedKeyError(f"an object has the key {key[:60]!r} twice")
    return content
