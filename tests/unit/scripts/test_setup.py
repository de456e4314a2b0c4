"""Set-up's decisions: what is missing, what is said about it, when it is done. What it installs, CI itself shows."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import setup

FILE = Path(setup.__file__)


def test_an_old_python_can_read_it() -> None:
    """It is run by whatever python3 there is: one that is too old must get as far as being told so."""
    ast.parse(FILE.read_text(), feature_version=(3, 7))


def test_it_needs_nothing_but_the_standard_library() -> None:
    """Without site-packages (-S) it still starts and answers."""
    done = subprocess.run([sys.executable, "-I", "-S", FILE, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_an_unsupported_python_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With no other Python on the PATH the message names the versions and the way to choose one."""
    monkeypatch.setattr(setup, "PYTHONS", ((2, 7),))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.CannotSetUp, match=r"needs one of 2\.7.*\n.*make PYTHON="):
        setup.require_python()


def test_missing_packages_are_named_in_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An ordinary user on a machine with apt-get and nothing else learns all that is missing at once."""
    (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = setup.missing_packages()
    assert {"redis-server", "g++"} <= set(missing)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(setup.CannotSetUp, match=r"apt-get install .*redis-server g\+\+"):
        setup.apt_install(missing)


def test_a_machine_without_apt_is_told_the_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another distribution: the Debian names are the best hint there is."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(setup.CannotSetUp, match="lacks what Debian packages as: redis-server"):
        setup.apt_install(["redis-server"])


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("go1.25.5", (1, 25, 5)), ("1.25.5", (1, 25, 5)), ("go1.26", (1, 26)), ("go1.26rc1", (1, 0))],
)
def test_versions_of_go(text: str, numbers: tuple[int, ...]) -> None:
    """As `go version` and go.mod write them; a pre-release counts as older."""
    assert setup.version_numbers(text) == numbers


@pytest.mark.parametrize(("version", "from_path"), [("go1.19.8", False), ("go1.99.0", True)])
def test_the_go_on_the_path_is_used_when_it_is_new_enough(
    version: str, from_path: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An older one (Debian's) cannot read the module; PyPI's is taken then."""
    (tmp_path / "go").write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert (setup.find_go("uv") == [str(tmp_path / "go")]) is from_path


def test_ready_only_with_the_stamp_of_this_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No stamp after an interrupted set-up; another one after a change of the lock or a move of the clone."""
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp.json")
    assert not setup.ready()
    setup.write_stamp()
    assert setup.read_stamp()["fingerprint"] == setup.fingerprint()
    (tmp_path / "lock").write_text(setup.LOCK_FILE.read_text() + "another==1.0\n")
    monkeypatch.setattr(setup, "LOCK_FILE", tmp_path / "lock")
    assert setup.read_stamp()["fingerprint"] != setup.fingerprint()
    assert not setup.ready()


def test_two_set_ups_take_turns(tmp_path: Path) -> None:
    """The second waits until the first lets go, and says so."""
    lock, program = tmp_path / "lock", "import sys; from pathlib import Path; from scripts import setup\n"
    program += "with setup.only_one(Path(sys.argv[1]), 'a test'): print('mine', flush=True)"
    with setup.only_one(lock, "a test"):
        second = subprocess.Popen([sys.executable, "-c", program, lock], stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert second.stdout.readline() == "set-up: waiting for another set-up that is at a test\n"
        time.sleep(0.2)
        assert second.poll() is None
    assert second.stdout.read() == "mine\n"
    assert second.wait() == 0
