"""Class names are unique, test names are short and explained, packages are documented."""

from __future__ import annotations

import pytest

from tests.language import names, sources
from tests.language.pending import pending


def test_class_names_are_unique() -> None:
    """A reader who meets a class name in a message or a traceback finds one definition of it."""
    repeated = names.repeated_classes()
    assert {name: places for name, places in repeated.items() if name not in pending("classes")} == {}


@pytest.mark.parametrize("path", [path for path in sources.modules("tests/") if path not in pending("tests")])
def test_test_names_are_short_and_explained(path: str) -> None:
    """A test is named `test_<unit>_<condition>_<result>` in at most 60 characters; its docstring is the sentence."""
    assert names.unclear_tests().get(path, []) == []


def test_packages_have_docstrings() -> None:
    """A package's docstring names its purpose and its modules, and shows who calls whom."""
    short = names.undocumented_packages()
    assert {path: lines for path, lines in short.items() if path not in pending("packages")} == {}
