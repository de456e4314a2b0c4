"""Reads the signature of a user's tool from its source text: type hints and docstring as a JSON schema. Pure.

The text is parsed, never imported or run: a tool is run only in the sandbox. `toolset.py` calls this when a job starts.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rstar2_train.tools.sandbox_program import SourceError, read_sources

_PLAIN: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array"},
    "dict": {"type": "object"},
    "None": {"type": "null"},
}
"""Type hint -> schema."""


def check_function(path: Path, name: str) -> None:
    """Raise SourceError unless the Python file or package defines the function `name` once."""
    _find(name, read_sources(path)[1])


def read_signature(name: str, sources: Mapping[str, str]) -> dict[str, Any]:
    """Return the signature of the function `name`, in the form of OpenAI's `tools`.

    `sources`: file -> Python text; the function must be defined at the top of exactly one file. Raises SourceError,
    which names the file and the parameter, for a function whose arguments cannot be described.
    """
    return _signature(*_find(name, sources))


def _find(name: str, sources: Mapping[str, str]) -> tuple[str, ast.FunctionDef]:
    """Return the file and the definition of a function."""
    definitions = []
    for file, text in sources.items():
        try:
            tree = ast.parse(text, filename=file)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise SourceError(f"{file}: not valid Python: {error}") from error
        definitions += [(file, node) for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(definitions) != 1:
        count = "more than one function" if definitions else "no function"
        raise SourceError(f"{', '.join(sources)}: {count} {name!r}; define one at the top level: def {name}(...)")
    return definitions[0]


def _signature(file: str, function: ast.FunctionDef) -> dict[str, Any]:
    from docstring_parser import parse

    where = f"{file}:{function.lineno}: {function.name}"
    documentation = parse(ast.get_docstring(function) or "")
    described = {param.arg_name: param.description or "" for param in documentation.params}
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise SourceError(f"{where}: *args, **kwargs and positional-only parameters are not allowed in a tool")
    parameters = [*arguments.args, *arguments.kwonlyargs]
    missing = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*missing, *arguments.defaults, *arguments.kw_defaults]
    properties: dict[str, Any] = {}
    required = []
    for parameter, default in zip(parameters, defaults, strict=True):
        if parameter.annotation is None:
            raise SourceError(f"{where}: parameter {parameter.arg!r} has no type hint; add one, such as `: str`")
        schema = _schema(parameter.annotation, f"{where}: parameter {parameter.arg!r}")
        if described.get(parameter.arg):
            schema.setdefault("description", " ".join(described[parameter.arg].split()))
        if default is None:
            required.append(parameter.arg)
        properties[parameter.arg] = schema
    description = "\n".join(part for part in (documentation.short_description, documentation.long_description) if part)
    if not description:
        raise SourceError(f"{where}: has no docstring; the model reads it as the description of the tool")
    schema = {"type": "object", "properties": properties, "required": required}
    return {
        "type": "function",
        "function": {"name": function.name, "description": description, "parameters": schema},
    }


def _schema(hint: ast.expr, where: str) -> dict[str, Any]:
    """Return the JSON schema of a type hint. Raises SourceError for one that JSON cannot express."""
    match hint:
        case ast.Constant(value=None):
            return dict(_PLAIN["None"])
        case ast.Constant(value=str(text)):
            return _schema(ast.parse(text, mode="eval").body, where)
        case ast.Name(id=name) if name in _PLAIN:
            return dict(_PLAIN[name])
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _any_of([_schema(left, where), _schema(right, where)])
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inner):
            parts = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
            return _generic(name, parts, hint, where)
    raise _unsupported(hint, where)


def _generic(name: str, parts: list[ast.expr], hint: ast.expr, where: str) -> dict[str, Any]:
    match name, parts:
        case "list" | "List", [item]:
            return {"type": "array", "items": _schema(item, where)}
        case "dict" | "Dict", [ast.Name(id="str"), value]:
            return {"type": "object", "additionalProperties": _schema(value, where)}
        case "Optional", [value]:
            return _any_of([_schema(value, where), dict(_PLAIN["None"])])
        case "Union", _:
            return _any_of([_schema(part, where) for part in parts])
        case "Literal", _ if all(isinstance(part, ast.Constant) for part in parts):
            return {"enum": [part.value for part in parts if isinstance(part, ast.Constant)]}
        case "Annotated", [value, ast.Constant(value=str(text))]:
            return _schema(value, where) | {"description": text}
    raise _unsupported(hint, where)


def _any_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    flat = [part for schema in schemas for part in schema.get("anyOf", [schema])]
    return {"anyOf": flat}


def _unsupported(hint: ast.expr, where: str) -> SourceError:
    allowed = "str, int, float, bool, list[T], dict[str, T], Literal[...], T | None, Annotated[T, 'description']"
    return SourceError(f"{where}: the type hint `{ast.unparse(hint)}` has no JSON form; allowed: {allowed}")
