"""Signatures of tools that a server describes."""

from __future__ import annotations

from typing import Any

import pytest

from rstar2_train.tools.remote_schema import lenient_schema, remote_signature
from rstar2_train.tools.sandbox_program import SourceError
from rstar2_train.tools.schema import qwen_tools_section


def test_remote_signature_drops_titles_only() -> None:
    """Titles are dropped; a parameter that is named title stays, as do defaults."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "addArguments",
        "type": "object",
        "properties": {
            "title": {"type": "string", "title": "Title", "pattern": "^(a+)+$"},
            "row": {"type": "object", "default": {"title": "x"}, "properties": {"b": {"title": "B"}}},
        },
        "required": ["title"],
    }
    signature = remote_signature("add", "Adds.", schema)
    parameters = signature["function"]["parameters"]
    assert parameters == {
        "type": "object",
        "properties": {
            "title": {"type": "string", "pattern": "^(a+)+$"},
            "row": {"type": "object", "default": {"title": "x"}, "properties": {"b": {}}},
        },
        "required": ["title"],
    }
    assert lenient_schema(parameters)["properties"]["title"] == {"type": "string"}
    assert '{"name": "add", "description": "Adds.", "parameters": {"type": "object"' in qwen_tools_section([signature])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}, "refers to 'https://example"),
        (
            {"type": "object", "properties": {"a": {"type": "number", "maximum": "x"}}},
            r"schema: properties\.a\.maximum: 'x' is not of type 'number'$",
        ),
        ({"type": "array"}, "the type of its arguments is not `object`"),
        ({"type": "object", "description": "x" * 20_000}, "the limit is 16384"),
    ],
)
def test_remote_signature_unusable_schema_is_rejected(schema: dict[str, Any], message: str) -> None:
    """A schema that cannot be used is rejected with the tool's name."""
    with pytest.raises(SourceError, match=f"tool 'f' of the server: .*{message}"):
        remote_signature("f", "", schema)
