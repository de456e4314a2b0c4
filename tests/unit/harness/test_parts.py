"""parts.py against a Makefile with parts that pass, fail, wait for one another, or leave a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import waiting
from tests.support.processes import has_ended

PARTS = Path(__file__).parents[2] / "parts.py"
MAKEFILE = r"""
good: ; @echo good output
bad: ; @echo bad output; exit 3
tests: ; @echo "test_some.py::test_one assert False" >> $$RSTAR2_FAILURES; exit 1
FAIL = { printf 'test_some.py::test_%s\tTimeoutError\n' $(1) >> $$RSTAR2_FAILURES; exit 1; }
race: ; @test -n "$$RSTAR2_ONLY" && cat $$RSTAR2_ONLY || $(call FAIL,two)
many: ; @test -n "$$RSTAR2_ONLY" || $(call FAIL,1 2 3 4)
nested: ; @$(PYTHON) $(PARTS) tests
WAIT = for i in $$(seq 600); do test -e $(1) && break; sleep 0.1; done; test -e $(1)
writer: ; @touch started; $(call WAIT,done) && echo writer output
reader: ; @$(call WAIT,started) && touch done
priority: ; @echo priority $$(nice)
alone: ; @mkdir lock && sleep 0.5 && rmdir lock && echo alone output
endless: ; @echo $$$$ > pid; exec sleep 600
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command that runs parts of the Makefile above; the working directory holds it."""
    (tmp_path / "Makefile").write_text(f"PYTHON = {sys.executable}\nPARTS = {PARTS}\n{MAKEFILE}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RSTAR2_FAILURES", raising=False)
    return [sys.executable, str(PARTS)]


def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_parts_after_a_failure_all_run(command: list[str]) -> None:
    """A failed part does not stop the next one; the summary names it and the exit code is 1."""
    done = run(command, "bad", "good")
    assert done.returncode == 1
    assert "bad output" in done.stdout and "good output" in done.stdout
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["bad", "FAILED"] in rows and ["good", "passed"] in rows
    assert done.stdout.splitlines()[-1] == "failed: bad"


def test_parts_failed_tests_are_named_last(command: list[str]) -> None:
    """The names come once, at the end, also those of a part that runs parts itself."""
    done = run(command, "nested", "good")
    assert done.stdout.splitlines()[-2:] == ["failed: nested", "test_some.py::test_one assert False"]
    assert done.stdout.count("test_one") == 1


def test_parts_failed_test_that_passes_alone_is_named(command: list[str]) -> None:
    """The test runs once more, and the run passes."""
    done = run(command, "race", "good")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == [
        "failed next to other parts, passed alone: race",
        "test_some.py::test_two TimeoutError",
    ]


@pytest.mark.parametrize("parts", [["race", "bad"], ["race", "tests"], ["many"]])
def test_parts_failures_that_are_no_accident_fail(command: list[str], parts: list[str]) -> None:
    """A part fails for another reason than a test, a test fails again, or too many fail."""
    assert run(command, *parts).returncode == 1


def test_parts_that_pass_exit_with_zero(command: list[str]) -> None:
    """The summary has the time of each part and of all."""
    done = run(command, "good")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["good", "all"]
    assert "of processor" in done.stdout


def test_parts_run_next_to_each_other(command: list[str]) -> None:
    """`writer` and `reader` wait for each other; the outputs come in the order of the parts."""
    done = run(command, "reader", "good", "writer", "--jobs", "3")
    assert done.returncode == 0
    assert done.stdout.index("good output") < done.stdout.index("writer output")


def test_parts_jobs_limits_the_running_parts(command: list[str]) -> None:
    """A part starts when another one has ended."""
    done = run(command, "alone", "alone", "alone", "--jobs", "1")
    assert done.returncode == 0 and done.stdout.count("alone output") == 3


def test_parts_background_run_one_by_one_at_low_priority(command: list[str]) -> None:
    """A part of --background takes no slot of the others, and does not run next to another one of --background."""
    done = run(command, "reader", "--background", "writer", "alone", "alone", "priority", "--jobs", "1")
    assert done.returncode == 0 and done.stdout.count("alone output") == 2
    assert f"priority {min(os.nice(0) + 5, 19)}" in done.stdout


def test_parts_without_memory_run_alone(command: list[str]) -> None:
    """A part that needs more memory than the machine has free starts when no other part runs."""
    done = run(command, "alone:1e9", "alone:1e9", "good", "--jobs", "3")
    assert done.returncode == 0 and done.stdout.count("alone output") == 2


def test_parts_terminated_stops_the_running_part(command: list[str], tmp_path: Path) -> None:
    """SIGTERM stops the part too, and the exit code is 143."""
    with subprocess.Popen([*command, "endless"], stdout=subprocess.DEVNULL) as process:
        waiting.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the part runs")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    pid = int((tmp_path / "pid").read_text())
    waiting.until(lambda: has_ended(pid), "the part has stopped")
