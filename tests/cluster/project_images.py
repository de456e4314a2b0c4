"""Builds the project's operator and judge images for the test cluster, from their Containerfiles with buildah.

Their base is the Debian of tests/kube_node/images.py, so no registry is needed. The cache holds archives under a hash
of all inputs. The settings of pip (index, certificates) are passed from this machine's environment as build arguments.
`make images` runs this file. It prints the archives and the commands that install them and the chart.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.setup import CACHE, ROOT, exclusive, step
from tests.kube_node import images
from tests.kube_node.requirements import ClusterUnavailable, root_environment

NAMES = ("operator", "judge")
BUILD_BASE = "rstar2.test/build-base:2"
BUILD_PACKAGES = "python3,python3-venv,ca-certificates,gcc,libc6-dev"
CERTIFICATES = Path("/etc/ssl/certs")
INPUTS = ("pyproject.toml", "requirements.lock", "README.md", "LICENSE", "rstar2_train", "operator", "verify")
MAX_ARCHIVES = 4
"""Builds of one image in the cache, least recently used ones deleted first: enough for two clones with two each."""
MAX_LAYERS = 30
"""Intermediate layers that buildah keeps for the next build. Above this number all of them are deleted."""
NEXT = """\
To install the operator on the test cluster after `make cluster-up` (the last three commands in its shell):

  .venv/bin/python -m tests.kube_node load {archives}
  make cluster-shell
  helm upgrade --install rstar2 helm/rstar2 --namespace rstar2 --create-namespace --wait {values}
  {first_job}
  kubectl get arl -w

An MLflow server: .venv/bin/python -m tests.cluster.mlflow_server
"""
FIRST_JOB = ".venv/bin/python -m tests.cluster.jobs tiny.yaml | kubectl apply -f -"
"""Command that runs examples/tiny.yaml with this machine's Python: the node has no image of trainer and engines."""
PIP_VARIABLES = ("PIP_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def reference(name: str) -> str:
    """Return the image reference for pods."""
    return f"rstar2.test/{name}:{_key(name)}"


def archive(name: str) -> Path:
    """Return the archive of an image for `ctr images import`; build it if the cache does not have these inputs."""
    tag = reference(name)
    target = CACHE / "cluster-images" / f"{name}-{tag.rpartition(':')[2]}.tar"
    if not target.exists():
        with exclusive(CACHE / "cluster-image-build.lock", f"building the image {name}"):
            if not target.exists():
                with step(f"image {name}"):
                    _build(name, tag, target)
                    _delete_old(target.parent.glob(f"{name}-*.tar"))
    target.touch()
    return target


def values() -> tuple[str, ...]:
    """Return values of the chart (`--set`) that use only images on the node.

    The images of trainer and engines are too large to build here. jobs.py gives their pods this machine's Python.
    """
    operator, _, tag = reference("operator").rpartition(":")
    return (
        f"firstJob={FIRST_JOB}",
        *(f"image.repository={operator}", f"image.tag={tag}", "image.pullPolicy=Never"),
        *(f"jobImages.{role}={images.BASE}" for role in ("trainer", "rollout", "redis")),
        f"jobImages.judge={reference('judge')}",
    )


def _key(name: str) -> str:
    digest = hashlib.sha256()
    for path in [ROOT / "images" / name / "Containerfile", *_sources()]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return f"sha{digest.hexdigest()[:12]}"  # helm's --set reads a tag of digits as a number


def _sources() -> list[Path]:
    files = []
    for name in INPUTS:
        path = ROOT / name
        files += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sorted(file for file in files if not any(map(_is_cache, file.relative_to(ROOT).parts)))


def _is_cache(part: str) -> bool:
    """Return whether a part of a path is of a cache, which the linters of `make check` write at the same time."""
    return part == "__pycache__" or part.startswith(".")


def _build(name: str, tag: str, target: Path) -> None:
    _buildah("rm", "--all")  # containers of builds that were interrupted, which keep their layers from being deleted
    _ensure_bases()
    settings = [item for key in os.environ if key.startswith(PIP_VARIABLES) for item in ("--build-arg", key)]
    folders = [CERTIFICATES, *(Path(entry) for entry in os.environ.get("PIP_FIND_LINKS", "").split())]
    mounts = [item for folder in folders if folder.is_dir() for item in ("--volume", f"{folder}:{folder}:ro")]
    _buildah(
        *("build", "--quiet", "--layers", "--pull-never", "--network=host", *settings, *mounts),
        *("--build-arg", f"BASE={images.BASE}", "--build-arg", f"BUILD_BASE={BUILD_BASE}"),
        *("--file", str(ROOT / "images" / name / "Containerfile"), "--tag", tag, str(ROOT)),
    )
    new = target.with_suffix(f".{os.getpid()}")
    _buildah("push", "--quiet", tag, f"docker-archive:{new}:{tag}")
    new.replace(target)


def _delete_old(archives: Iterable[Path]) -> None:
    """Delete the least recently used archives: each change of the sources adds half a gigabyte."""
    for old in sorted(archives, key=lambda archive: archive.stat().st_mtime)[:-MAX_ARCHIVES]:
        old.unlink()
        name, _, key = old.stem.rpartition("-")
        with contextlib.suppress(ClusterUnavailable):  # buildah's own copy may be deleted already
            _buildah("rmi", f"rstar2.test/{name}:{key}")
    if len(_buildah("images", "--quiet", "--filter", "dangling=true").split()) > MAX_LAYERS:
        _buildah("rmi", "--prune")


def _ensure_bases() -> None:
    """Load the two base images into buildah if it does not have them."""
    existing = _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()
    if images.BASE not in existing:
        _buildah("pull", "--quiet", f"docker-archive:{images.archive('base')}")
    if BUILD_BASE in existing:
        return
    with tempfile.TemporaryDirectory() as folder:
        layer = f"{folder}/root.tar"
        release = images.debian_release()
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={BUILD_PACKAGES}"]
        _run([*command, release, layer, *images.debian_mirror(release)])
        container = _buildah("from", "scratch").strip()
        _buildah("add", "--quiet", container, layer, "/")
        _buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        _buildah("commit", "--quiet", "--rm", container, BUILD_BASE)


def _buildah(*arguments: str) -> str:
    store = CACHE / "buildah"
    return _run(["buildah", "--root", str(store / "root"), "--runroot", str(store / "run"), *arguments])


def _run(command: list[str]) -> str:
    settings = {**root_environment(), "STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
    if done.returncode != 0:
        raise ClusterUnavailable(
            f"`{' '.join(command[:6])} ...` failed with exit code {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    archives = [str(archive(name)) for name in NAMES]
    print(*archives, sep="\n", flush=True)
    sets = "".join(f" \\\n    --set {shlex.quote(value)}" for value in values())
    print(
        "\n" + NEXT.format(archives=" ".join(archives), values=sets.lstrip(" "), first_job=FIRST_JOB),
        end="",
        file=sys.stderr,
    )
