"""Reads the data and runs the checker of the package bfcl-eval. `bench.bfcl` runs it with the Python of its own venv.

`python bfcl_package.py rows CATEGORY...` prints the items of the categories, a line of JSON each. `python
bfcl_package.py score` reads lines `{category, id, calls: [{name: arguments}]}` and prints a verdict per line, or null
if the checker raised an error.
"""

import json
import sys
import types
from collections.abc import Iterable
from typing import Any

LANGUAGES = {"simple_java": "java", "simple_javascript": "javascript"}


class _Model:
    """A model of the benchmark: its names of functions have no dots."""

    underscore_to_dot = True


class _Models(dict[str, type[_Model]]):
    def __missing__(self, key: str) -> type[_Model]:
        return _Model


def stub_models() -> None:
    """Replace the module with all models of the benchmark: its import needs the packages of every provider."""
    module: Any = types.ModuleType("bfcl_eval.constants.model_config")
    module.MODEL_CONFIG_MAPPING = _Models()
    sys.modules[module.__name__] = module


def load(category: str) -> Iterable[tuple[dict[str, Any], Any]]:
    """Yield the items of a category with their wanted calls; None: there are none by design.

    Types are those of the function's language. Models see texts in place of those of Java and JavaScript.
    """
    from bfcl_eval.utils import load_dataset_entry, load_ground_truth_entry

    entries = load_dataset_entry(category, include_language_specific_hint=False)
    if "relevance" in category:
        yield from ((entry, None) for entry in entries)
        return
    truths = {entry["id"]: entry["ground_truth"] for entry in load_ground_truth_entry(category)}
    yield from ((entry, truths[entry["id"]]) for entry in entries)


def is_valid(category: str, entry: dict[str, Any], truth: Any, calls: list[dict[str, Any]]) -> bool | None:
    """Return the verdict of the benchmark on the calls of a turn; None: its checker raised an error."""
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    if truth is None:
        return bool(calls) == ("irrelevance" not in category)
    language = LANGUAGES.get(category, "python")
    try:
        return bool(ast_checker(entry["function"], calls, truth, Language(language), category, "rstar2")["valid"])
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def main() -> None:
    """Run the command."""
    stub_models()
    if sys.argv[1] == "rows":
        for category in sys.argv[2:]:
            for entry, truth in load(category):
                row = {"category": category, "id": entry["id"], "question": entry["question"], "truth": truth}
                print(json.dumps(row | {"function": entry["function"]}))
        return
    known: dict[str, dict[str, tuple[dict[str, Any], Any]]] = {}
    for line in sys.stdin:
        output = json.loads(line)
        category = output["category"]
        if category not in known:
            known[category] = {entry["id"]: (entry, truth) for entry, truth in load(category)}
        print(json.dumps(is_valid(category, *known[category][output["id"]], output["calls"])))


if __name__ == "__main__":
    main()
