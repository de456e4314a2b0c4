"""Builds the images of a new cluster as archives in the cache: pause, CoreDNS, and a small Debian for test pods.

An archive has the format of `docker save`: layers as tar files, a configuration, a manifest. Tests need no registry.
tests/cluster/project_images.py builds the project's own images; `Cluster.load_image` loads them.
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

from scripts.setup import CACHE, exclusive, step
from tests.kube_node import binaries
from tests.kube_node.components import PAUSE
from tests.kube_node.requirements import ClusterUnavailable, root_environment

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
    """Write a docker archive with one layer (a tar file). `settings` are Entrypoint, User, Env and similar."""
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
    new = target.with_suffix(f".{os.getpid()}")
    with tarfile.open(new, "w") as archive:
        add_bytes(archive, name, json.dumps(config).encode())
        add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        archive.add(layer, f"{digest}.tar")
    new.replace(target)


def program_layer(folder: Path, programs: dict[str, Path]) -> Path:
    """Write a layer that has only statically linked programs, in its root; return its path."""
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        for name, path in programs.items():
            add_bytes(archive, name, path.read_bytes(), 0o755)
    return layer


def build_pause(target: Path, folder: Path) -> None:
    source, built = folder / "pause.c", folder / "pause"
    source.write_text(PAUSE_SOURCE)
    done = subprocess.run(["gcc", "-static", "-Os", "-o", built, source], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterUnavailable(
            f"The pause program does not compile. Install gcc and libc6-dev: {done.stderr.strip()}"
        )
    write_archive(
        target, PAUSE, program_layer(folder, {"pause": built}), {"Entrypoint": ["/pause"], "User": "65535:65535"}
    )


def build_coredns(target: Path, folder: Path) -> None:
    layer = program_layer(folder, {"coredns": Path(binaries.path_of("coredns"))})
    write_archive(target, COREDNS, layer, {"Entrypoint": ["/coredns"], "User": "65532:65532"})


def debian_release() -> str:
    """Return this machine's Debian release: a mounted interpreter needs the C library that it was built for."""
    lines = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if lines.get("ID", "").strip('"') != "debian":
        raise ClusterUnavailable(
            "The base image uses the release of this machine, and only Debian is supported. Use RSTAR2_KUBECONFIG."
        )
    return lines["VERSION_CODENAME"].strip('"')


def debian_mirror(release: str) -> list[str]:
    """Return this machine's apt mirror of the release for mmdebstrap; empty selects the default mirror."""
    command = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)"]
    listing = subprocess.run(command, capture_output=True, text=True, env=root_environment(), check=True).stdout
    sources = [line.split() for line in listing.splitlines()]
    return [source[2] for source in sources if source[:2] == ["Debian", release]][:1]


def build_base(target: Path, folder: Path) -> None:
    """Write a minimal Debian with Python, Redis and the libraries of vLLM; any user can enter root's folder."""
    layer = folder / "base.tar"
    hooks = [
        'chmod 755 "$1/root"',  # non-root pods must reach an interpreter that is mounted below it
        'echo rstar2:x:65532:65532::/tmp:/usr/sbin/nologin >> "$1/etc/passwd"; echo rstar2:x:65532: >> "$1/etc/group"',
        'rm -rf "$1"/usr/share/doc/* "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/var/cache/apt/*',
    ]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES.replace(' ', ',')}"]
    command += ["--aptopt=Acquire::Languages none", *(f"--customize-hook={hook}" for hook in hooks)]
    command += [debian_release(), str(layer), *debian_mirror(debian_release())]
    done = subprocess.run(command, capture_output=True, text=True, env=root_environment(), check=False)
    if done.returncode != 0:
        raise ClusterUnavailable(
            f"mmdebstrap cannot build the base image. Check that a Debian mirror is reachable.\n{done.stderr.strip()}"
        )
    write_archive(target, BASE, layer, {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]})


BUILDERS = {
    "pause": (build_pause, lambda: PAUSE_SOURCE),
    "coredns": (build_coredns, lambda: binaries.path_of("coredns")),
    "base": (build_base, lambda: f"{debian_release()} {PACKAGES} 1"),
}


def archive(name: str) -> Path:
    """Return the archive of an image; build it if the cache does not have it."""
    build, recipe = BUILDERS[name]
    target = CACHE / "cluster-images" / f"{name}-{hashlib.sha256(recipe().encode()).hexdigest()[:12]}.tar"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(CACHE / f"cluster-image-{name}.lock", f"building the image {name}"):
            if not target.exists():
                with step(f"image {name}"), tempfile.TemporaryDirectory(dir=target.parent) as folder:
                    build(target, Path(folder))
    return target
