"""Decisions of the set-up: missing packages, messages, completeness. CI runs the installation itself."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import setup

FILE = Path(setup.__file__)


def test_setup_parses_in_python_3_7() -> None:
    """An unsupported Python must be able to run it up to its error message."""
    ast.parse(FILE.read_text(), feature_version=(3, 7))


def test_setup_needs_only_the_standard_library() -> None:
    """It runs without site-packages (-S)."""
    done = subprocess.run([sys.executable, "-I", "-S", FILE, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_require_python_unsupported_version_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without another Python on the PATH, the message names the versions and the variable of the Makefile."""
    monkeypatch.setattr(setup, "PYTHONS", ((2, 7),))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.SetupFailed, match=r"Supported versions: 2\.7.*\n.*make PYTHON="):
        setup.require_python()


def test_apt_install_without_root_prints_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message has all missing packages."""
    (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = setup.missing_packages()
    assert {"redis-server", "g++"} <= set(missing)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(setup.SetupFailed, match=r"apt-get install .*redis-server g\+\+"):
        setup.apt_install(missing)


def test_apt_install_without_apt_prints_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On another distribution, the Debian names are a hint."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.SetupFailed, match=r"\(Debian names\): redis-server"):
        setup.apt_install(["redis-server"])


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("go1.25.5", (1, 25, 5)), ("1.25.5", (1, 25, 5)), ("go1.26", (1, 26)), ("go1.26rc1", (1, 0))],
)
def test_version_numbers_of_go(text: str, numbers: tuple[int, ...]) -> None:
    """In the formats of `go version` and go.mod; a pre-release counts as older."""
    assert setup.version_numbers(text) == numbers


@pytest.mark.parametrize(("version", "from_path"), [("go1.19.8", False), ("go1.99.0", True)])
def test_find_go_uses_the_path_if_new_enough(
    version: str, from_path: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An older Go (Debian's) cannot read the module; then PyPI's is used."""
    (tmp_path / "go").write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert (setup.find_go("uv") == [str(tmp_path / "go")]) is from_path


def test_ready_requires_the_current_stamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An interrupted set-up has no stamp; a change of the lock or the clone's folder makes it invalid."""
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp.json")
    assert not setup.ready()
    setup.write_stamp()
    assert setup.read_stamp()["fingerprint"] == setup.fingerprint()
    (tmp_path / "lock").write_text(setup.LOCK_FILES["cpu"].read_text() + "another==1.0\n")
    monkeypatch.setattr(setup, "LOCK_FILES", {"cpu": tmp_path / "lock"})
    assert setup.read_stamp()["fingerprint"] != setup.fingerprint()
    assert not setup.ready()


def test_accelerator_is_kept_by_the_stamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ACCELERATOR selects the packages; a later `make demo` without it does not install those of the CPU again."""
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp.json")
    monkeypatch.delenv("ACCELERATOR", raising=False)
    assert setup.accelerator() == "cpu"
    monkeypatch.setenv("ACCELERATOR", "nvidia")
    setup.write_stamp()
    monkeypatch.delenv("ACCELERATOR")
    assert setup.accelerator() == "nvidia" and setup.read_stamp()["fingerprint"] == setup.fingerprint()
    monkeypatch.setenv("ACCELERATOR", "cpu")
    assert setup.read_stamp()["fingerprint"] != setup.fingerprint()


@pytest.mark.parametrize(("name", "message"), [("amd", "docs/gpu.md describes"), ("tpu", "Values: cpu, nvidia, amd")])
def test_accelerator_without_packages_fails(name: str, message: str) -> None:
    """`make setup` prints the remedy once; its check, which runs first, prints nothing."""
    command = [sys.executable, "-I", FILE]
    environment = {**os.environ, "ACCELERATOR": name}
    checked, done = (
        subprocess.run([*command, *option], capture_output=True, text=True, check=False, env=environment)
        for option in (["--check"], [])
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (1, "")
    assert done.returncode == 1 and message in done.stdout


def test_exclusive_second_process_waits(tmp_path: Path) -> None:
    """The second process prints that it waits, until the first releases the lock."""
    lock, program = tmp_path / "lock", "import sys; from pathlib import Path; from scripts import setup\n"
    program += "with setup.exclusive(Path(sys.argv[1]), 'a test'): print('acquired', flush=True)"
    with setup.exclusive(lock, "a test"):
        second = subprocess.Popen([sys.executable, "-c", program, lock], stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert second.stdout.readline() == "set-up: waiting for another set-up: a test\n"
        time.sleep(0.2)
        assert second.poll() is None
    assert second.stdout.read() == "acquired\n"
    assert second.wait() == 0
