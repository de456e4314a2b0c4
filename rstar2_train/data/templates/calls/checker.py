"""The reward: the calls of the first turn are the wanted ones, by the rules of BFCL v3.

`data` of a row: `functions`, with BFCL's types; `calls`, the wanted calls as `[{name: {argument: [allowed values]}}]`,
where the allowed value "" makes an argument optional; `kind`, one of `simple` (one call), `multiple` (one call, of one
of several functions), `parallel` (all calls, in any order), `irrelevance` (no call) and `relevance` (any call);
`language`, `java` or `javascript` if the functions have types of that language. All their arguments are source texts,
such as "new int[]{1, 2}", which are read by the rules of BFCL's own converters. An unreadable text stays a text.

Texts are compared without case, spaces and the signs , . / - _ * ^; an integer is a float; other types must be equal.
"""

import json
import re

TYPES: dict = {
    "python": {
        "string": str,
        "integer": int,
        "float": float,
        "boolean": bool,
        "array": list,
        "tuple": list,
        "dict": dict,
        "any": str,
    },
    "java": {
        "byte": int,
        "short": int,
        "integer": int,
        "long": int,
        "float": float,
        "double": float,
        "boolean": bool,
        "char": str,
        "String": str,
        "Array": list,
        "ArrayList": list,
        "HashMap": dict,
        "any": str,
    },
    "javascript": {
        "integer": int,
        "Bigint": int,
        "float": float,
        "Boolean": bool,
        "String": str,
        "array": list,
        "dict": dict,
        "any": str,
    },
}
"""Language -> type of BFCL -> type of a value."""
LISTS = ("array", "tuple", "Array", "ArrayList")
NUMBERS: dict = {
    "java": {
        "byte": r"-?\d+",
        "short": r"-?\d+",
        "integer": r"-?\d+",
        "long": r"-?\d+[lL]",
        "float": r"-?\d+(\.\d+)?([eE][+-]?\d+)?[fF]",
        "double": r"-?\d+(\.\d+)?([eE][+-]?\d+)?",
    },
    "javascript": {"integer": r"-?\d+", "Bigint": r"-?\d+n", "float": r"-?\d+(\.\d+)?"},
}
"""Language -> type -> pattern of its numbers."""
LONGEST = 2000
"""Maximum characters of a source text that is read: the patterns need the square of its length in the worst case."""
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
    left, language = list(given), data.get("language", "python")
    for wanted in data["calls"]:
        ((name, allowed),) = wanted.items()
        function = next(function for function in data["functions"] if function["name"] == name)
        match = next((call for call in left if not fault(function, call, allowed, language)), None)
        if match is None:
            faults = "; ".join(fault(function, call, allowed, language) for call in left)
            return 0.0, f"no call matches {name}: {faults}"
        left.remove(match)
    return 1.0, "the wanted calls"


def fault(function, call, allowed, language):
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
        if not is_allowed(value, allowed[argument], properties[argument], language):
            return f"{argument} has another type or value"
    return ""


def is_allowed(value, allowed, schema, language):
    """Return whether an argument has its type and one of the allowed values."""
    types, name = TYPES[language], schema["type"]
    inner = schema["items"]["type"] if name in LISTS else None
    kind, items = types[name], types[inner] if inner else None
    if language != "python":
        if not isinstance(value, str):
            return False
        value = read_source(value, language, name, inner)
    if name == "float" and type(value) is int:
        value = float(value)
    example = first_type(allowed)
    if type(value) is not kind:  # the wanted value is the name of a variable
        return type(value) is example and value in allowed
    if items and not any(not isinstance(answer, list) or has_items(value, answer, items) for answer in allowed):
        return False
    if example not in (None, kind):
        return value in allowed
    if kind is dict:
        return any(is_equal_object(value, answer) for answer in allowed if answer != "")
    if kind is list and items is dict:
        return any(len(value) == len(answer) and all(map(is_equal_object, value, answer)) for answer in allowed)
    if kind is list:
        return [plain(item) for item in value] in [[plain(item) for item in answer] for answer in allowed]
    return plain(value) in [plain(answer) for answer in allowed if kind is not str or isinstance(answer, str)]


def first_type(allowed):
    """Return the type of the first allowed value; None if there is none but "", which stands for no value."""
    return next((type(answer) for answer in allowed if answer != ""), None)


def has_items(value, allowed, kind):
    """Return whether each item of a list has the type of the schema, or that of the allowed list."""
    return all(type(item) in (kind, first_type(allowed)) for item in value)


def is_equal_object(value, allowed):
    """Return whether an object has allowed values, and all fields that are not optional."""
    if any(field not in allowed for field in value):
        return False
    equal = all(plain(item) in [plain(answer) for answer in allowed[field]] for field, item in value.items())
    return equal and all(field in value or "" in values for field, values in allowed.items())


def plain(value):
    """Return a text without case, spaces and some signs; another value unchanged."""
    return IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def read_source(text, language, name, inner=None):
    """Return the value of a source text of the type `name`, whose items have the type `inner`; None: any type."""
    if TYPES[language][name] is not str and len(text) > LONGEST:
        return text
    if language == "javascript" and name == "String":
        return text[1:-1] if is_quoted(text) else text
    if name in ("boolean", "Boolean"):
        return text == "true" if text in ("true", "false") else text
    if name in NUMBERS[language]:
        has_form = re.match(f"{NUMBERS[language][name]}$", text)
        return TYPES[language][name](text.strip().rstrip("lLfFn")) if has_form else text
    readers = {"Array": read_array, "ArrayList": read_array_list, "HashMap": read_hash_map}
    readers |= {"array": read_javascript_array, "dict": read_javascript_object}
    return readers[name](text, inner) if name in readers else text


def read_item(text, language, inner):
    """Return the value of an item of a list."""
    text = text.strip()
    return read_source(text, language, inner) if inner else read_literal(text, language)


def read_array(text, inner):
    """Return the items of `new int[]{1, 2}`."""
    match = re.search(r"new\s+\w+\[\]\s*\{(.*?)\}", text)
    return [read_item(item, "java", inner) for item in match[1].split(",") if item.strip()] if match else text


def read_array_list(text, inner):
    """Return the items of `new ArrayList<>(Arrays.asList(1, 2))` or `new ArrayList<>() {{ add(1); add(2); }}`."""
    listed = re.search(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)", text)
    added = re.search(r"new\s+ArrayList<\w*>\(\)\s*\{\{(.+?)\}\}", text, re.DOTALL)
    if listed:
        items = listed[1].split(",")
    elif added:
        items = re.findall(r"add\((.+?)\)", added[1])
    else:
        return [] if re.search(r"new\s+ArrayList<\w*>\(\)", text) else text
    if inner in ("char", "String"):
        return [item.strip()[1:-1] for item in items]
    return [read_item(item, "java", inner) for item in items]


def read_hash_map(text, _inner):
    """Return the fields of `new HashMap<>() {{ put("a", 1); }}`."""
    match = re.search(r"new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?([^}]*)\}", text, re.DOTALL)
    if not match:
        return {} if re.search(r"new\s+HashMap<.*?>\s*\(\)", text) else text
    fields = re.findall(r"put\(\"(.*?)\",\s*(.*?)\)", match[1])
    return {key: read_literal(value, "java") for key, value in fields}


def read_javascript_array(text, inner):
    """Return the items of `[1, 2]` or `new Array(1, 2)`, which may be lists."""
    text = text.strip()
    rows = r"\s*\[(?:.*?|[^\]\n]*(?:\]\s*,\s*\[[^\]\n]*)*)\]\s*"
    nested = re.match(rf"\[{rows}\]|new\s+Array\({rows}\)", text)
    if nested:
        lists = [inner.strip() for inner in re.findall(r"\[(.*?)\]", nested[0])]
        lists[0] = lists[0].removeprefix("[")
        return [[read_literal(item, "javascript") for item in inner.split(",")] for inner in lists]
    match = re.match(r"\[(.*?)\]|new\s+Array\((.*?)\)", text)
    if not match:
        return text
    items = (match[1] or match[2] or "").strip()
    return [read_item(item, "javascript", inner) for item in items.split(",")] if items else []


def read_javascript_object(text, _inner):
    """Return the fields of `{a: 1}`."""
    text = text.strip()
    match = re.match(r"\{(.*?)\}", text)
    if not match:
        return text
    value = {}
    for key, field in re.findall(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)", match[1]):
        field = field.strip()
        is_list = field.startswith("[") and field.endswith("]")
        key = key.strip().strip("'\"")
        value[key] = read_javascript_array(field, None) if is_list else read_literal(field.strip("'\""), "javascript")
    return value


def read_literal(text, language):
    """Return the value of a source text without a type."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if is_quoted(text) and (language == "javascript" or text[0] == '"'):
        return text[1:-1]
    if language == "java" and re.match(rf"(?:{NUMBERS['java']['long']}|{NUMBERS['java']['float']})$", text):
        return (int if text[-1] in "lL" else float)(text[:-1])
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def is_quoted(text):
    """Return whether a text has the same quote at both ends."""
    return text[:1] in ('"', "'") and text.endswith(text[0])
