"""Which checks a saved file gets."""

import pytest

from scripts import watch


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("rstar2_train/rollout/agent.py", "tests/unit/rollout/test_agent.py"),
        ("rstar2_train/rollout/workers/messages.py", "tests/unit/rollout"),
        ("operator/rstar2_operator/lease.py", "tests/unit/operator/test_lease.py"),
        ("operator/rstar2_operator/decide/decision.py", "tests/unit/operator"),
        ("tests/unit/operator/test_lease.py", "tests/unit/operator/test_lease.py"),
        ("tests/integration/judge/test_status.py", ""),
        ("docs/glossary.md", "tests/unit/docs"),
        ("bench/judge.py", ""),
    ],
)
def test_unit_tests_of_a_saved_file(path: str, tests: str) -> None:
    """A module has the tests of its own name, else those of its package; a test in need of servers is not started."""
    assert watch.unit_tests(path) == tests


def test_commands_quickest_first() -> None:
    """Style comes first, tests last, and a text without tests gets the language rules alone."""
    checks = [command[0].rsplit("/", 1)[-1] for command in watch.commands({"scripts/watch.py"})]
    assert checks == ["ruff", "ruff", "python", "pytest"]
    assert [command[1:] for command in watch.commands({"README.md"})] == [["-m", "tests.language.words", "README.md"]]
