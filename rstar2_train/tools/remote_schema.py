"""The signature of a tool that a server describes by a JSON schema. Pure.

The schema comes from an untrusted peer: its size is bounded, its references stay inside, and the parts that could make
the check of arguments slow are left to the server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rstar2_train.tools.sandbox_program import SourceError

MAX_SCHEMA_CHARACTERS = 16384
_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keywords whose keys are names, not keywords."""
_SLOW = ("pattern", "patternProperties")
"""Keywords with regular expressions of the server, which may need exponential time."""


def remote_signature(name: str, description: str, schema: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
    """Return the signature of a server's tool in the form of OpenAI's `tools`, without titles.

    `where`: the tool in messages; default: a tool of the server. Raises SourceError for a schema that cannot be used.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    where = where or f"tool {name!r} of the server"
    try:
        size = len(json.dumps(schema)) + len(description)
        if size > MAX_SCHEMA_CHARACTERS:
            raise SourceError(f"{where}: described by {size:,} characters; the limit is {MAX_SCHEMA_CHARACTERS}")
        Draft202012Validator.check_schema(dict(schema))
        parameters = _without(schema, ("title", "$schema"))
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path))
        raise SourceError(f"{where}: not a JSON schema: {place}: {error.message[:200]}") from error
    except SourceError:
        raise
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where}: not a JSON schema: {str(error)[:200]}") from error
    for reference in _references(parameters):
        if not reference.startswith("#"):
            raise SourceError(f"{where}: its schema refers to {reference!r}; only references that start with # work")
    if parameters.get("type") != "object":
        raise SourceError(f"{where}: the type of its arguments is not `object`")
    parameters.setdefault("properties", {})
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def declared_signature(function: Any) -> dict[str, Any]:
    """Return the signature of a function that a row of data declares: `{name, description, parameters}`.

    Raises SourceError for a function that cannot be used.
    """
    given = function if isinstance(function, Mapping) else {}
    name, description, parameters = given.get("name"), given.get("description", ""), given.get("parameters")
    if not (isinstance(name, str) and name and isinstance(description, str) and isinstance(parameters, Mapping)):
        raise SourceError(f"not a function with a name, a description and parameters: {json.dumps(function)[:80]}")
    return remote_signature(name, description, parameters, where=f"function {name!r}")


def lenient_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema by which arguments are checked here: without regular expressions of the server."""
    return _without(parameters, _SLOW)


def _without(schema: Any, keywords: tuple[str, ...], *, named: bool = False) -> Any:
    """Return a copy of a schema without the keywords. `named`: the keys of this object are names."""
    if isinstance(schema, list):
        return [_without(entry, keywords) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value if key in ("default", "enum", "const") and not named
        else _without(value, keywords, named=not named and key in _NAMED)
        for key, value in schema.items()
        if named or key not in keywords
    }  # fmt: skip


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [reference for entry in schema for reference in _references(entry)]
    if not isinstance(schema, Mapping):
        return []
    own = [str(schema[key]) for key in ("$ref", "$dynamicRef") if isinstance(schema.get(key), str)]
    return own + [reference for value in schema.values() for reference in _references(value)]
