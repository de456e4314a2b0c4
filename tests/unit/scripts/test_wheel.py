"""The packages of a release work outside a clone: the wheel, built from the sdist, has all files of the packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.language.sources import tracked

ROOT = Path(__file__).parents[3]
PACKAGES = {"": ("rstar2_train",), "operator/": ("rstar2_operator",), "verify/": ("rstar2_verify",)}
"""Folder of the repository -> its packages."""
BUILD = "from setuptools import build_meta; print(build_meta.build_{kind}('dist'))"
MAIN = (
    "import sys; sys.path[:0] = [sys.argv.pop(1)]; from rstar2_train.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


def build(kind: str, folder: Path) -> Path:
    """Build a package of the sources in `folder`, without a network."""
    (folder / "dist").mkdir(exist_ok=True)
    code = BUILD.format(kind=kind)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "dist" / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the wheel. It is built from the sdist, as a release does."""
    folder = tmp_path_factory.mktemp("packages")
    for path in tracked():
        if path.startswith(("rstar2_train/", "operator/", "verify/", "examples/")) or "/" not in path:
            (folder / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / "clone" / path, follow_symlinks=False)
    with tarfile.open(build("sdist", folder / "clone")) as sdist:
        sdist.extractall(folder / "sdist", filter="data")
    (source,) = (folder / "sdist").iterdir()
    with zipfile.ZipFile(build("wheel", source)) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_wheel_has_all_files_of_the_packages(installed: Path) -> None:
    """Templates, pages, scripts, licences of other projects, and the manifest of the demo."""
    tracked_files = {
        path.removeprefix(folder): ROOT / path
        for path in tracked()
        for folder, packages in PACKAGES.items()
        if path.startswith(tuple(f"{folder}{package}/" for package in packages))
    }
    missing = [name for name in tracked_files if not (installed / name).is_file()]
    assert missing == []
    differing = [name for name, path in tracked_files.items() if (installed / name).read_bytes() != path.read_bytes()]
    assert differing == []
    assert (installed / "rstar2_train/data/demo.yaml").read_bytes() == (ROOT / "examples/tiny.yaml").read_bytes()


def test_wheel_commands_need_no_clone(installed: Path, tmp_path: Path) -> None:
    """The command starts in an empty folder, and the manifest of the demo is valid there."""
    for arguments in (["--help"], ["validate", str(installed / "rstar2_train/data/demo.yaml")], ["demo", "--help"]):
        command = [sys.executable, "-I", "-c", MAIN, str(installed), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "examples" not in {path.name for path in installed.iterdir()}
