"""The preparation of a machine for the test cluster: the services of packages stay off, and builds print their time."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.setup import SetupFailed
from tests.kube_node import binaries, requirements

UNIT = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"


@pytest.mark.skipif(requirements.find_command("systemctl") is None, reason="no systemctl on this machine")
def test_services_of_new_packages_stay_disabled(tmp_path: Path) -> None:
    """A service that a package enables is disabled again; one that was enabled before stays, as does a policy."""
    folder = tmp_path / "usr/lib/systemd/system"
    folder.mkdir(parents=True)
    for name in ("etcd.service", "containerd.service"):
        (folder / name).write_text(UNIT)

    def enable(name: str) -> None:
        subprocess.run(["systemctl", f"--root={tmp_path}", "enable", name], check=True, capture_output=True)

    enable("containerd.service")
    policy = tmp_path / "policy-rc.d"
    with requirements.without_services(policy, tmp_path):
        assert subprocess.run([policy], check=False).returncode == 101, "Debian must not start a service"
        enable("etcd.service")
        assert requirements.enabled_services(tmp_path) == {"etcd.service", "containerd.service"}
    assert requirements.enabled_services(tmp_path) == {"containerd.service"}
    assert not policy.exists()
    policy.write_text("of the machine")
    with requirements.without_services(policy, tmp_path):
        pass
    assert policy.read_text() == "of the machine"


def test_build_output_is_in_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Downloads of Go are not printed, but the elapsed time; an error ends with the output of its own command."""
    monkeypatch.setattr(binaries, "LOG", tmp_path / "build.log")
    monkeypatch.setattr(binaries, "REPORT_SECONDS", 0.2)
    binaries.run_logged(["sh", "-c", "echo downloading; sleep 0.5"], failed="", folder=tmp_path)
    printed = "".join(capfd.readouterr())
    assert "downloading" not in printed
    assert re.search(r"\.\.\. \d+ s\n", printed), "a slow machine can take more than a second"
    with pytest.raises(SetupFailed, match="cannot build") as error:
        binaries.run_logged(["sh", "-c", "echo no space; exit 3"], failed="cannot build", folder=tmp_path)
    assert "no space" in str(error.value)
    assert "downloading" not in str(error.value)


def test_build_has_a_cache_of_its_own() -> None:
    """Go's modules and builds are below the cache that `make clean-all` removes."""
    folders = binaries.COMPILER["GOCACHE"], binaries.COMPILER["GOMODCACHE"]
    assert all(Path(folder).is_relative_to(binaries.CACHE) for folder in folders)
