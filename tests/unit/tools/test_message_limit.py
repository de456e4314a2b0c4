"""The limit of the values in a message of an MCP server."""

import json
import random
from typing import Any

import pytest

from rstar2_train.tools.message_limit import MAX_OBJECTS, MAX_VALUES, MessageLimit


def count(document: bytes, *, parts: int = 1) -> None:
    """Count a document that arrives in `parts` parts, cut at random places."""
    limit, generator = MessageLimit(), random.Random(parts)
    cuts = sorted(generator.randrange(len(document)) for _ in range(parts - 1))
    for start, end in zip([0, *cuts], [*cuts, len(document)], strict=True):
        limit.count(document[start:end])


TEXT = '{[,"\\\n' * 9_000


@pytest.mark.parametrize("parts", [1, 2, 7, 5_000])
@pytest.mark.parametrize("indent", [None, 1])
def test_message_limit_does_not_count_in_strings(parts: int, indent: int | None) -> None:
    """A long text with marks, quotes and escapes is one value, however the message is cut."""
    count(json.dumps({"content": [{"text": TEXT}, {"text": TEXT}] * 9}, indent=indent).encode(), parts=parts)


@pytest.mark.parametrize("parts", [1, 3, 500])
@pytest.mark.parametrize(
    ("value", "too_many"),
    [
        ([[]] * (MAX_OBJECTS - 1), [[]] * MAX_OBJECTS),
        ([{"a": TEXT}] + [{}] * (MAX_OBJECTS - 2), [{"a": TEXT}] + [{}] * (MAX_OBJECTS - 1)),
        ([1] * (MAX_VALUES + 1), [1] * (MAX_VALUES + 2)),
        (["", *[1] * MAX_VALUES][:MAX_VALUES], ["", *[1] * (MAX_VALUES + 1)]),
    ],
)
def test_message_limit_refuses_many_values(value: Any, too_many: Any, parts: int) -> None:
    """Objects, arrays and values up to the limit are read, one more is refused."""
    count(json.dumps(value).encode(), parts=parts)
    with pytest.raises(ValueError, match="more than 4,096 objects and arrays, or 16,384 values"):
        count(json.dumps(too_many).encode(), parts=parts)


def test_message_limit_refuses_values_that_are_no_json() -> None:
    """The limit is counted before the message is parsed."""
    for document in (b'""' * (MAX_VALUES + 1), b'"\n' * 2 * MAX_VALUES, b"[" * 5000, b"," * 20_000):
        with pytest.raises(ValueError, match="more than"):
            count(document)
