"""Class names are unique, test names are short and explained, packages are documented."""

from __future__ import annotations

from tests.language import names


def test_class_names_are_unique() -> None:
    """A reader who meets a class name in a message or a traceback finds one definition of it."""
    assert names.repeated_classes() == {}


def test_test_names_are_short_and_explained() -> None:
    """A test is named `test_<unit>_<condition>_<result>` in at most 60 characters; its docstring is the sentence."""
    assert names.unclear_tests() == []


def test_variables_are_named_for_their_values() -> None:
    """A variable has the name of its value, such as `pod` or `condition`, not `each`."""
    assert names.unnamed_values() == []


def test_functions_have_imperative_docstrings() -> None:
    """A function starts with its action, such as "Return whether ..."; one dialect in the whole code."""
    assert names.nominal_docstrings() == []


def test_packages_have_docstrings() -> None:
    """A package's docstring names its purpose and its modules, and shows who calls whom."""
    assert names.undocumented_packages() == {}
