"""The packages of a job: resolved once, locked, and refused by name if they do not exist."""

import shutil
from pathlib import Path

import pytest

from rstar2_train.judge.sandbox.packages import install
from rstar2_train.judge.sandbox.rootfs import SetupError, available_lanes, package_modules
from rstar2_train.judge.worker.lanes import choose_lane
from rstar2_train.tools.sandbox_program import function_program
from tests.support.wheels import use_only, write_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is the only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    use_only(folder, monkeypatch)
    write_wheel(folder, "orbit_tables", "1.0", "PERIOD = 1\n")
    return folder


def test_install_keeps_the_versions_of_the_lock(index: Path, tmp_path: Path) -> None:
    """A lock keeps its versions when a newer one appears; other requirements are resolved again."""
    lock, cache = tmp_path / "packages.lock", tmp_path / "cache"
    folder = install(["Orbit-Tables"], lock=lock, cache=cache)
    assert lock.read_text() == "# packages: Orbit-Tables\norbit-tables==1.0\n"
    assert (folder / "orbit_tables.py").read_text() == "PERIOD = 1\n"
    write_wheel(index, "orbit_tables", "2.0", "PERIOD = 2\n")
    shutil.rmtree(cache)
    assert (install(["Orbit-Tables"], lock=lock, cache=cache) / "orbit_tables.py").read_text() == "PERIOD = 1\n"
    newer = install(["orbit_tables>=2"], lock=lock, cache=cache)
    assert (newer / "orbit_tables.py").read_text() == "PERIOD = 2\n"
    assert lock.read_text() == "# packages: orbit_tables>=2\norbit-tables==2.0\n"


def test_install_names_packages_that_do_not_exist(index: Path, tmp_path: Path) -> None:
    """The error names the missing package, and no lock or folder is left."""
    with pytest.raises(SetupError, match=r"no such package or version: orbit_absent\. Correct the names"):
        install(["orbit_tables", "orbit_absent"], lock=tmp_path / "packages.lock", cache=tmp_path / "cache")
    assert not (tmp_path / "packages.lock").exists()
    assert list((tmp_path / "cache/sandbox").iterdir()) == []


def test_packages_lane_is_chosen_by_a_tools_imports(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs and packed functions that import a package of the job run in the interpreter that has loaded it."""
    assert "packages" not in available_lanes()
    folder = install(["orbit_tables"], lock=tmp_path / "packages.lock", cache=tmp_path / "cache")
    monkeypatch.setenv("RSTAR2_SANDBOX_SITE", str(folder))
    lanes, packages = available_lanes(), package_modules()
    assert packages == {"orbit_tables"}
    assert choose_lane("import orbit_tables", lanes, packages=packages) == "packages"
    program = function_program("tool", {"tool.py": "from orbit_tables import PERIOD\n"}, "period")
    assert choose_lane(program, lanes, packages=packages) == "packages"
    assert choose_lane(function_program("tool", {"tool.py": "import numpy"}, "f"), lanes) == "numpy"
    assert choose_lane(function_program("tool", {"tool.py": "x ="}, "f"), lanes) == "std"
