"""The reward: the calls of the first turn are the wanted ones, by the rules of BFCL v3 for calls of Python functions.

`data` of a row: `functions`, with BFCL's types; `calls`, the wanted calls as `[{name: {argument: [allowed values]}}]`,
where the allowed value "" makes an argument optional; `kind`, one of `simple` (one call), `multiple` (one call, of one
of several functions), `parallel` (all calls, in any order), `irrelevance` (no call) and `relevance` (any call).

Texts are compared without case, spaces and the signs , . / - _ * ^; an integer is a float; other types must be equal.
"""

import json
import re

TYPES: dict = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
IGNORED = re.compile(r"[ ,./\-_*^]")


def score(row, answer, transcript):
    """Return 1.0 for the wanted calls, else 0.0, and the reason."""
    data, calls = row["data"], transcript["calls"]
    if data["kind"] in ("irrelevance", "relevance"):
        wants_call = data["kind"] == "relevance"
        has_call = any(call["status"] != "malformed" for call in calls)
        return float(has_call == wants_call), "a call" if has_call else "no call"
    if any(call["status"] == "malformed" for call in calls):
        return 0.0, "a malformed call"
    given = [(call["name"], json.loads(call["code"] or "{}")) for call in calls]
    if len(given) != len(data["calls"]):
        return 0.0, f"{len(given)} calls, not {len(data['calls'])}"
    left = list(given)
    for wanted in data["calls"]:
        ((name, allowed),) = wanted.items()
        function = next(function for function in data["functions"] if function["name"] == name)
        match = next((call for call in left if not fault(function, call, allowed)), None)
        if match is None:
            return 0.0, f"no call matches {name}: {'; '.join(fault(function, call, allowed) for call in left)}"
        left.remove(match)
    return 1.0, "the wanted calls"


def fault(function, call, allowed):
    """Return why a call is not a wanted one; empty: it is."""
    name, arguments = call
    properties = function["parameters"]["properties"]
    if name != function["name"].replace(".", "_"):
        return f"{name} is another function"
    missing = [argument for argument in function["parameters"]["required"] if argument not in arguments]
    missing += [argument for argument, values in allowed.items() if argument not in arguments and "" not in values]
    if missing:
        return f"{missing[0]} is missing"
    for argument, value in arguments.items():
        if argument not in properties or argument not in allowed:
            return f"{argument} is not an argument"
        if not is_allowed(value, allowed[argument], properties[argument]):
            return f"{argument} has another type or value"
    return ""


def is_allowed(value, allowed, schema):
    """Return whether an argument has its type and one of the allowed values."""
    kind = TYPES[schema["type"]]
    items = TYPES[schema["items"]["type"]] if schema["type"] in ("array", "tuple") else None
    if schema["type"] == "float" and type(value) is int:
        value = float(value)
    example = first_type(allowed)
    if type(value) is not kind:  # the wanted value is the name of a variable
        return type(value) is example and value in allowed
    if items and not any(not isinstance(each, list) or has_items(value, each, items) for each in allowed):
        return False
    if example not in (None, kind):
        return value in allowed
    if kind is dict:
        return any(is_equal_object(value, each) for each in allowed if each != "")
    if kind is list and items is dict:
        return any(len(value) == len(each) and all(map(is_equal_object, value, each)) for each in allowed)
    if kind is list:
        return [plain(item) for item in value] in [[plain(item) for item in each] for each in allowed]
    return plain(value) in [plain(each) for each in allowed if kind is not str or isinstance(each, str)]


def first_type(allowed):
    """Return the type of the first allowed value; None if there is none but "", which stands for no value."""
    return next((type(each) for each in allowed if each != ""), None)


def has_items(value, allowed, kind):
    """Return whether each item of a list has the type of the schema, or that of the allowed list."""
    return all(type(item) in (kind, first_type(allowed)) for item in value)


def is_equal_object(value, allowed):
    """Return whether an object has allowed values, and all fields that are not optional."""
    if any(field not in allowed for field in value):
        return False
    equal = all(plain(item) in [plain(each) for each in allowed[field]] for field, item in value.items())
    return equal and all(field in value or "" in values for field, values in allowed.items())


def plain(value):
    """Return a text without case, spaces and some signs; another value unchanged."""
    return IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
