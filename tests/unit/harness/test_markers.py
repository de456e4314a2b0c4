"""tests/conftest.py: GPU tests on a machine without a GPU, the marker `cluster`, skips in CI, failed tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
TESTS = """
import pytest

@pytest.fixture
def cluster():
    return None

@pytest.mark.gpu
def test_on_gpu(): pass

def test_on_cluster(cluster): pass

def test_plain(): pass

def test_skipped(): pytest.skip("no such tool")
"""
SETTINGS = "[pytest]\nmarkers =\n  gpu\n  cluster\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Provide a folder with the tests above, the settings, and a conftest that finds no GPU."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    conftest = CONFTEST.read_text().replace('Path("/dev/nvidiactl"), Path("/dev/kfd")', 'Path("/dev/no-gpu"),')
    assert conftest != CONFTEST.read_text()
    (tmp_path / "conftest.py").write_text(conftest)
    return tmp_path


def run(folder: Path, *arguments: str, **variables: str) -> str:
    """Run pytest in the folder; return its output, and a line with its exit code."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RSTAR2_"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *arguments, str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**environment, **variables}, check=False
    )
    return f"{done.stdout}\nexit code {done.returncode}"


def test_markers_gpu_tests_are_not_collected(folder: Path) -> None:
    """Without a GPU the test is deselected, so it is no skip in CI."""
    assert "2 passed, 1 skipped, 1 deselected" in run(folder)


def test_markers_gpu_tests_skip_when_selected(folder: Path) -> None:
    """With `-m gpu` the test is collected and skips with the reason."""
    output = run(folder, "-m", "gpu")
    assert "no GPU: none of /dev/no-gpu exists" in output and "1 skipped, 3 deselected" in output


def test_markers_cluster_follows_the_fixture(folder: Path) -> None:
    """A test that uses the fixture `cluster` has the marker."""
    assert "1 passed, 3 deselected" in run(folder, "-m", "cluster")


def test_markers_skip_fails_in_ci(folder: Path) -> None:
    """RSTAR2_REQUIRE_ALL=1 turns a skip into a failure that keeps its reason."""
    output = run(folder, RSTAR2_REQUIRE_ALL="1")
    assert "1 failed, 2 passed" in output and "did not run" in output and "no such tool" in output


def test_markers_failed_tests_are_written_to_the_file(folder: Path) -> None:
    """RSTAR2_FAILURES gets a line per failure or error, with the error; none for a test that passes."""
    (folder / "test_some.py").write_text(
        "import pytest\n@pytest.fixture\ndef broken(): raise OSError('no disk')\n"
        "def test_passes(): pass\ndef test_fails(): assert 1 == 2, 'why'\ndef test_errs(broken): pass\n"
    )
    run(folder, RSTAR2_FAILURES=str(folder / "failures"))
    lines = (folder / "failures").read_text().splitlines()
    assert lines == ["test_some.py::test_fails\tAssertionError: why", "test_some.py::test_errs\tOSError: no disk"]
    assert "1 failed, 1 deselected, 1 error" in run(folder, RSTAR2_ONLY=str(folder / "failures"))


def test_markers_without_a_selected_test_pass(folder: Path) -> None:
    """A part of which no test has to run again passes."""
    (folder / "failures").write_text("test_other.py::test_fails\tAssertionError\n")
    output = run(folder, RSTAR2_ONLY=str(folder / "failures"))
    assert "4 deselected" in output and "exit code 0" in output
