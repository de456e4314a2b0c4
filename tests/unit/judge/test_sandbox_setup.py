"""The preparation of sandboxes: root, OCI bundle, cores, and errors of a full disk."""

import json
import os
from pathlib import Path

import pytest

from rstar2_train.judge.sandbox.local import LocalSandbox
from rstar2_train.judge.sandbox.oci_bundle import SandboxSettings, bundle_config
from rstar2_train.judge.sandbox.rootfs import (
    SetupError,
    installed_packages,
    prepare_library,
    prepare_root,
    requested_packages,
)
from rstar2_train.judge.worker.provider import LocalSandboxProvider


def test_bundle_config_is_unprivileged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The OCI configuration has no host mount, no variable of the worker, and no capability but that for user ids."""
    monkeypatch.setenv("RSTAR2_REDIS_PASSWORD", "hunter2")
    config = bundle_config(tmp_path, ["python"])
    process = config["process"]
    assert config["root"]["readonly"] and process["noNewPrivileges"]
    assert process["user"] == {"uid": 0, "gid": 65534}  # a call has a user id of its own, without any capability
    assert all(names == ["CAP_SETUID"] for names in process["capabilities"].values())
    assert {"type": "network"} in config["linux"]["namespaces"]
    assert "hunter2" not in json.dumps(config)
    assert all(mount["source"] in ("proc", "tmpfs") for mount in config["mounts"])


def test_prepare_root_uses_the_root_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of an image is used without a check of its inputs; a folder that is not a root is rejected."""
    library = tmp_path / "opt/executor/forkserver.so"
    monkeypatch.setenv("RSTAR2_SANDBOX_ROOT", str(tmp_path))
    with pytest.raises(SetupError, match="is not the root of a sandbox"):
        prepare_root()
    library.parent.mkdir(parents=True)
    library.touch()
    assert (prepare_root(), prepare_library()) == (tmp_path, library)


def test_requested_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """RSTAR2_SANDBOX_PACKAGES installs nothing; the error has the command that does."""
    monkeypatch.setenv("RSTAR2_SANDBOX_PACKAGES", f"no-such-package {tmp_path}")
    with pytest.raises(SetupError, match=rf"no-such-package, {tmp_path} is neither .* \(uv pip install NAME\)"):
        installed_packages()


def test_local_provider_spreads_sandboxes_over_cores(tmp_path: Path) -> None:
    """Each core gets one sandbox before any gets two, and a replacement gets the core of its location."""
    cores = sorted(os.sched_getaffinity(0))
    settings = SandboxSettings(isolation="none", state=tmp_path, platform="", lanes=("bare",))
    provider = LocalSandboxProvider(settings, 2 * len(cores))
    sandboxes = [provider.create(str(location)) for location in range(2 * len(cores))]
    used = [sandbox.core for sandbox in sandboxes if isinstance(sandbox, LocalSandbox)]
    assert sorted(used[: len(cores)]) == sorted(used[len(cores) :]) == cores
    replacement = provider.create("0")
    assert isinstance(replacement, LocalSandbox)
    assert replacement.core == used[0]


def test_requested_packages_are_words_of_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces and commas separate them, except in quotation marks; one that does not end is named."""
    monkeypatch.setenv("RSTAR2_SANDBOX_PACKAGES", "scipy,pandas '/my, folder/x'  /a/b ")
    assert requested_packages() == (["scipy", "pandas"], [Path("/my, folder/x"), Path("/a/b")])
    monkeypatch.setenv("RSTAR2_SANDBOX_PACKAGES", "/home/o'neil/x")
    with pytest.raises(SetupError, match="RSTAR2_SANDBOX_PACKAGES: No closing quotation"):
        requested_packages()
