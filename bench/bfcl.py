"""The agreement of our scores of BFCL v3 with those of the package bfcl-eval.

`python -m bench.bfcl` draws right and wrong calls for every item, scores them with the checker of the template `calls`
and with the benchmark's own, and writes bench/results/bfcl.json. The package is in a venv of its own, because its pins
exclude those of this project; only its checker of calls is used, which needs none of its 150 dependencies.

Not covered: the categories of several turns, whose checker executes the calls. The package has the data of v3 under the
names of v4.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.bfcl_sources import draw_source
from bench.learning import ROOT
from bench.provenance import describe_commit
from rstar2_train.benchmarks.bfcl.conversion import KINDS, LANGUAGES, to_row
from rstar2_train.data import task_templates

PACKAGE = "bfcl-eval==2026.3.23"
NEEDED = ("filelock==3.20.0", "tenacity==9.1.2", "mpmath==1.3.0", "python-dotenv==1.1.1", "pydantic==2.11.7")
"""Imports of its data and its checker of calls."""
VENV = ROOT / ".rstar2" / "bfcl-venv"
SCRIPT = Path(__file__).with_name("bfcl_package.py")
RESULTS = ROOT / "bench" / "results" / "bfcl.json"
Calls = list[tuple[str, dict[str, Any]]]
"""Names and arguments of the calls of a turn."""


def package_python() -> Path:
    """Return the Python of the venv with the package, which is created once."""
    python = VENV / "bin" / "python"
    if not (VENV / "installed").exists():
        venv.create(VENV, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", PACKAGE], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *NEEDED], check=True)
        (VENV / "installed").touch()
    return python


def run_package(*arguments: str, stdin: str = "") -> list[Any]:
    """Return the lines that `bfcl_package.py` prints, as values."""
    argv = [str(package_python()), "-P", str(SCRIPT), *arguments]  # -P: bench has a module `operator`
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv[2:4])} failed: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def draw_outputs(item: dict[str, Any], rng: random.Random) -> Iterator[Calls]:
    """Yield calls for an item: wanted ones in several forms, and calls with one fault each."""
    functions = [function["name"].replace(".", "_") for function in item["function"]]
    if item["truth"] is None:
        yield []
        yield [(functions[0] if functions else "f", {})]
        return
    for first in (True, False, False):
        yield [draw_call(call, rng, first=first) for call in item["truth"]]
    right = [draw_call(call, rng, first=True) for call in item["truth"]]
    yield right[::-1]
    yield right[:-1]
    yield [*right, right[0]]
    for change in CHANGES:
        at = rng.randrange(len(right))
        name, arguments = right[at]
        if arguments:
            key = rng.choice(list(arguments))
            yield [*right[:at], (name, arguments | {key: change(arguments[key])}), *right[at + 1 :]]
            yield [*right[:at], (name, {k: v for k, v in arguments.items() if k != key}), *right[at + 1 :]]
        yield [*right[:at], (name, {**arguments, "unknown": 1}), *right[at + 1 :]]
    yield [(rng.choice([*functions, "no_such_function"]), right[0][1]), *right[1:]]


def draw_language_outputs(item: dict[str, Any], rng: random.Random) -> Iterator[Calls]:
    """Yield calls for an item. Those of Java and JavaScript have source texts as arguments, in three drawn forms."""
    language = LANGUAGES.get(item["category"])
    if language is None:
        yield from draw_outputs(item, rng)
        return
    (function,) = item["function"]
    properties = function["parameters"]["properties"]
    for calls in draw_outputs(item, rng):
        for _ in range(3):
            yield [
                (name, {k: draw_source(v, properties.get(k, {"type": "any"}), language, rng) for k, v in given.items()})
                for name, given in calls
            ]


CHANGES: tuple[Callable[[Any], Any], ...] = (
    lambda value: f" {value}.".upper() if isinstance(value, str) else value,
    lambda value: f"{value}x" if isinstance(value, str) else str(value),
    lambda value: int(value) if isinstance(value, float) else value + 1 if type(value) is int else value,
    lambda value: not value if isinstance(value, bool) else [value],
    lambda value: value[::-1] if isinstance(value, (list, str)) else {},
    lambda value: [str(each) for each in value] if isinstance(value, list) else None,
    lambda value: (
        {**value, "other": 1}
        if isinstance(value, dict)
        else dict.fromkeys(value)
        if value and isinstance(value, str)
        else []
    ),
)
"""Functions that change one argument."""


def draw_call(call: dict[str, Any], rng: random.Random, *, first: bool) -> tuple[str, dict[str, Any]]:
    """Return a wanted call with the first allowed value of each argument, or a random one."""
    ((name, allowed),) = call.items()
    values = {}
    for argument, options in allowed.items():
        if not options or (first and options[0] == "") or (not first and "" in options and rng.random() < 0.5):
            continue
        values[argument] = pick(options[0] if first else rng.choice(options), rng)
    return name.replace(".", "_"), values


def pick(value: Any, rng: random.Random) -> Any:
    """Return a value that an allowed value stands for: the fields of an object are lists of allowed values."""
    if isinstance(value, dict):
        return {
            key: pick(rng.choice(options), rng) if isinstance(options, list) and options else options
            for key, options in value.items()
            if not (isinstance(options, list) and "" in options and rng.random() < 0.5)
        }
    return [pick(each, rng) for each in value] if isinstance(value, list) else value


def load_checker() -> Any:
    """Return the checker of the template."""
    path = Path(task_templates.__file__).with_name("templates") / "calls" / "checker.py"
    spec = importlib.util.spec_from_file_location("calls_checker", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many verdicts on drawn calls are equal, per category and in total."""
    rng, checker = random.Random("bfcl"), load_checker()
    outputs = [(item, calls) for item in items for calls in draw_language_outputs(item, rng)]
    lines = [
        {"category": item["category"], "id": item["id"], "calls": [{name: arguments} for name, arguments in calls]}
        for item, calls in outputs
    ]
    theirs = run_package("score", stdin="".join(json.dumps(line) + "\n" for line in lines))
    rows = {item["id"]: to_row(item["category"], item, item["truth"]) for item in items}
    categories = {name: {"items": 0, "outputs": 0, "valid": 0, "equal": 0, "errors": 0} for name in KINDS}
    for item in items:
        categories[item["category"]]["items"] += 1
    different = []
    for (item, calls), verdict in zip(outputs, theirs, strict=True):
        made = [{"name": name, "code": json.dumps(arguments), "status": "ok"} for name, arguments in calls]
        score, reason = checker.score(rows[item["id"]], None, {"calls": made})
        counts = categories[item["category"]]
        counts["outputs"] += 1
        if verdict is None:  # the benchmark's checker raised an error
            counts["errors"] += 1
            continue
        counts["valid"] += verdict
        counts["equal"] += (score == 1.0) == verdict
        if (score == 1.0) != verdict:
            different.append({"id": item["id"], "calls": calls, "ours": reason, "theirs": verdict})
    keys = ("items", "outputs", "valid", "equal", "errors")
    totals = {key: sum(counts[key] for counts in categories.values()) for key in keys}
    return {
        "package": PACKAGE,
        "command": "python -m bench.bfcl",
        "commit": describe_commit(),
        **totals,
        "different": different[:20],
        "categories": categories,
    }


def main() -> None:
    """Compare the scores."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    items = run_package("rows", *KINDS)
    result = compare(items)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "categories"}, indent=1))
    if result["equal"] + result["errors"] != result["outputs"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
