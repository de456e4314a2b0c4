"""Class names are unique, test names are short and explained, packages are documented."""

from __future__ import annotations

import pytest

from tests.language import names, sources


def test_class_names_are_unique() -> None:
    """A reader who meets a class name in a message or a traceback finds one definition of it."""
    assert names.repeated_classes() == {}


@pytest.mark.parametrize("path", sources.modules("tests/"))
def test_test_names_are_short_and_explained(path: str) -> None:
    """A test is named `test_<unit>_<condition>_<result>` in at most 60 characters; its docstring is the sentence."""
    assert names.unclear_tests().get(path, []) == []


def test_packages_have_docstrings() -> None:
    """A package's docstring names its purpose and its modules, and shows who calls whom."""
    assert names.undocumented_packages() == {}
