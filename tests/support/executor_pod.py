"""An executor pod without Kubernetes: its server in a gVisor sandbox with this machine's network.

It runs as with the RuntimeClass gvisor in a cluster: without privileges, with a read-only root and a writable /tmp.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rstar2_train.judge.sandbox.oci_bundle import find_runsc
from rstar2_train.judge.sandbox.rootfs import prepare_root
from rstar2_train.utils.dns import join_address
from rstar2_train.utils.files import cache_folder

CLONE = Path(__file__).parents[2]
READY_SECONDS = 300


def write_keys(folder: Path) -> tuple[Path, Path]:
    """Write a new key pair of workers; return the files of the private and the public key."""
    key = Ed25519PrivateKey.generate()
    private, public = folder / "worker-key.pem", folder / "worker-public-key.pem"
    pem = serialization.Encoding.PEM
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


class ExecutorPod:
    """One executor at HOST:PORT. `start` after `kill` or `wait` restarts it, as the kubelet does."""

    def __init__(self, folder: Path, *, host: str, port: int, public_key: Path, lanes: tuple[str, ...] = ()) -> None:
        prepare_root()  # an image contains the root already
        self.port = port
        self.address = join_address(host, port)
        self.folder = folder
        self.log = folder / "executor.log"
        folder.mkdir(parents=True)
        arguments = ["--host", host, "--port", str(port), "--worker-key-file", f"/tmp/keys/{public_key.name}"]
        arguments += ["--lanes", *lanes] if lanes else []
        (folder / "config.json").write_text(json.dumps(_bundle(arguments, keys=public_key.parent)))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = [find_runsc(), "--root", str(self.folder / "runsc"), "--network=host", "--overlay2=none"]
        command += ["--ignore-cgroups"] + (["--rootless"] if os.geteuid() != 0 else [])
        command += ["run", "--bundle", str(self.folder), f"executor-{uuid.uuid4().hex[:8]}"]
        before = self._ready_lines()
        with self.log.open("ab") as log:  # runsc overwrites a file that is not opened for appending
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + READY_SECONDS
        while self._ready_lines() <= before:
            assert self._process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def _ready_lines(self) -> int:
        return self.log.read_text().count('"event": "ready"') if self.log.exists() else 0

    def kill(self) -> None:
        """Kill it, unless it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait(self) -> int:
        """Wait until it exits by itself; return its exit status."""
        assert self._process is not None
        return self._process.wait(300)


def _bundle(arguments: list[str], *, keys: Path) -> dict:
    # Only with this capability may root map itself into a user namespace; the user of a real pod is not root.
    capabilities = ["CAP_SETFCAP"] if os.geteuid() == 0 else []
    kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "PYTHONPATH": str(CLONE),
        "RSTAR2_CACHE": str(cache_folder()),
    }
    return {
        "ociVersion": "1.0.0",
        "hostname": "executor",
        "root": {"path": "/", "readonly": True},
        "process": {
            "user": {"uid": os.geteuid(), "gid": os.getegid()},
            "args": [sys.executable, "-m", "rstar2_train.judge", "executor", *arguments],
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {kind: capabilities for kind in kinds},
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            {"destination": str(CLONE), "type": "bind", "source": str(CLONE), "options": ["ro"]},  # may be below /tmp
            {"destination": "/tmp/keys", "type": "bind", "source": str(keys), "options": ["ro"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]},
    }
