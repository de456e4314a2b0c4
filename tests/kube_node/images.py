"""The images that a cluster starts with, as archives in the cache: pause, CoreDNS, and a small Debian for test pods.

An archive is what `docker save` would write: layers as tar files, a configuration, a manifest. Nothing is pulled from a
registry, so tests run without one. Images of the project itself are built elsewhere and loaded with `Cluster.load`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from scripts.setup import CACHE, only_one, step
from tests.kube_node import binaries
from tests.kube_node.components import PAUSE
from tests.kube_node.requirements import NoCluster, environment

COREDNS = "rstar2.test/coredns:1"
BASE = "rstar2.test/base:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PACKAGES = "python3 ca-certificates libnuma1 libgomp1 redis-server procps iproute2 netcat-openbsd"
PAUSE_SOURCE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int signal) { _exit(0); }
static void reap(int signal) { while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
  signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, reap);
  for (;;) pause();
}
"""


def add_bytes(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_archive(target: Path, image: str, layer: Path, settings: dict[str, Any]) -> None:
    """Write a docker archive of one layer (a tar file); `settings` are Entrypoint, User, Env and the like."""
    digest = digest_of(layer)
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "rstar2 test cluster"}],
    }
    name = hashlib.sha256(json.dumps(config).encode()).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": [image], "Layers": [f"{digest}.tar"]}]
    fresh = target.with_suffix(f".{os.getpid()}")
    with tarfile.open(fresh, "w") as archive:
        add_bytes(archive, name, json.dumps(config).encode())
        add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        archive.add(layer, f"{digest}.tar")
    fresh.replace(target)


def program_layer(folder: Path, programs: dict[str, Path]) -> Path:
    """A layer with nothing but statically linked programs in its root."""
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        for name, path in programs.items():
            add_bytes(archive, name, path.read_bytes(), 0o755)
    return layer


def make_pause(target: Path, folder: Path) -> None:
    source, built = folder / "pause.c", folder / "pause"
    source.write_text(PAUSE_SOURCE)
    done = subprocess.run(["gcc", "-static", "-Os", "-o", built, source], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoCluster(f"The pause program could not be compiled (Debian: gcc libc6-dev): {done.stderr.strip()}")
    write_archive(
        target, PAUSE, program_layer(folder, {"pause": built}), {"Entrypoint": ["/pause"], "User": "65535:65535"}
    )


def make_coredns(target: Path, folder: Path) -> None:
    layer = program_layer(folder, {"coredns": Path(binaries.path_of("coredns"))})
    write_archive(target, COREDNS, layer, {"Entrypoint": ["/coredns"], "User": "65532:65532"})


def debian_release() -> str:
    """The release that this machine runs: a mounted interpreter needs the C library it was built for."""
    lines = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if lines.get("ID", "").strip('"') != "debian":
        raise NoCluster("The base image is made from this machine's own release, and only Debian is supported here")
    return lines["VERSION_CODENAME"].strip('"')


def debian_mirror(release: str) -> list[str]:
    """Where apt on this machine gets the release from, for mmdebstrap; empty leaves it the default mirror."""
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)"]
    listing = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True).stdout
    sources = [line.split() for line in listing.splitlines()]
    return [words[2] for words in sources if words[:2] == ["Debian", release]][:1]


def make_base(target: Path, folder: Path) -> None:
    """A minimal Debian with Python, Redis and what vLLM loads; root's folder can be entered by everybody."""
    layer = folder / "base.tar"
    hooks = [
        'chmod 755 "$1/root"',  # an interpreter that is mounted below it must be reachable for non-root pods
        'echo rstar2:x:65532:65532::/tmp:/usr/sbin/nologin >> "$1/etc/passwd"; echo rstar2:x:65532: >> "$1/etc/group"',
        'rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/var/cache/apt/*',
    ]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES.replace(' ', ',')}"]
    command += ["--aptopt=Acquire::Languages none", *(f"--customize-hook={hook}" for hook in hooks)]
    command += [debian_release(), str(layer), *debian_mirror(debian_release())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    if done.returncode != 0:
        raise NoCluster(
            f"mmdebstrap could not make the base image; is a Debian mirror in reach?\n{done.stderr.strip()}"
        )
    write_archive(target, BASE, layer, {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]})


MAKERS = {
    "pause": (make_pause, lambda: PAUSE_SOURCE),
    "coredns": (make_coredns, lambda: binaries.path_of("coredns")),
    "base": (make_base, lambda: f"{debian_release()} {PACKAGES} 1"),
}


def archive(name: str) -> Path:
    """The archive of one of the images, made when it is not in the cache."""
    make, recipe = MAKERS[name]
    target = CACHE / "cluster-images" / f"{name}-{hashlib.sha256(recipe().encode()).hexdigest()[:12]}.tar"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_one(CACHE / f"cluster-image-{name}.lock", f"making the image {name}"):
            if not target.exists():
                with step(f"image {name}"), tempfile.TemporaryDirectory(dir=target.parent) as folder:
                    make(target, Path(folder))
    return target
