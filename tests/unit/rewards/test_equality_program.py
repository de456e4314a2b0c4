"""The program that the judge runs: with and without the installed package, and its limit of CPU time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rstar2_train.rewards.equality_program import MODULE, NO_PACKAGE, SOURCES, WARM_UP, install, program


def run(code: str, packages: Path | None = None) -> str:
    """Return the output of a program in a new interpreter, which may have the package."""
    prefix = f"import sys\nsys.path.insert(0, {str(packages)!r})\n" if packages else ""
    done = subprocess.run([sys.executable], input=prefix + code, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder)
    return folder


def test_program_without_package_prints_no_package() -> None:
    """A sandbox without the package prints it, and `verify` then sends a program with it."""
    assert run(program(r"\frac{10}{4}", "2.5")) == f"{NO_PACKAGE}\n"


def test_program_with_package_carries_it() -> None:
    """The carried package is used by a sandbox that does not have it."""
    code = program(r"\frac{10}{4}", "2.5", with_package=True)
    assert run(code + f"assert not hasattr(sys.modules['{MODULE}'], '__file__')\n") == "correct\n"


def test_program_with_installed_package_uses_it(packages: Path) -> None:
    """The installed package is used, and the warm-up fills its caches without output."""
    code = program(r"\frac{10}{4}", "2") + f"\nassert sys.modules['{MODULE}'].__file__\n"
    assert run(WARM_UP + code, packages) == "wrong\n"


def test_program_answers_are_literals(packages: Path) -> None:
    """Quotes and code in an answer are data."""
    answer = "\"\"\"'); print('correct') #"
    assert run(program(answer, "5"), packages) == run(program(answer, "5", with_package=True)) == "wrong\n"


def test_sources_are_all_modules() -> None:
    """The program carries every module that the check needs, and they import only each other and mpmath."""
    folder = Path(__file__).parents[3] / "verify/rstar2_verify"
    outside = {"cli", "math_verify", "measures", "known"}
    assert set(SOURCES) == {path.stem for path in folder.glob("*.py")} - outside
    assert not any("rstar2_train" in source for source in SOURCES.values())


LIMITED = f"""
import time
from {MODULE} import limited
limited.CPU_SECONDS = 0.2
def work(known, answer):
    {{work}}
    return limited_verify("5", "5")
limited_verify, limited.verify = limited.verify, work
limited.main("5", "5")
"""


def test_main_limit_counts_cpu_time(packages: Path) -> None:
    """A check that computes for longer than the limit is undecided."""
    assert run(LIMITED.format(work="while True: pass"), packages) == "undecided\n"


def test_main_limit_ignores_wall_time(packages: Path) -> None:
    """A check that a slow machine interrupts for longer than the limit is decided."""
    assert run(LIMITED.format(work="time.sleep(0.5)"), packages) == "correct\n"
