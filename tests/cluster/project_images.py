"""The project's own images for the test cluster: operator and judge, built from their Containerfiles with buildah.

Their base is the Debian of images.py, not a registry's: nothing is pulled. Archives are kept in the cache, by a hash of
everything that goes in. pip's settings (index, certificates) come from this machine's environment, as build arguments.
`make images` runs this file: it prints the archives, and the commands that bring them and the chart onto the cluster.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.setup import CACHE, ROOT, only_one, step
from tests.kube_node import images
from tests.kube_node.requirements import NoCluster, environment

NAMES = ("operator", "judge")
BUILD_BASE = "rstar2.test/build-base:2"
BUILD_PACKAGES = "python3,python3-venv,ca-certificates,gcc,libc6-dev"
CERTIFICATES = Path("/etc/ssl/certs")
INPUTS = ("pyproject.toml", "requirements.lock", "README.md", "LICENSE", "rstar2_train", "operator")
KEPT = 4
"""Builds of an image that the cache holds, the last ones used: two clones at work, and what each had before."""
LAYERS_KEPT = 30
"""Results of single steps that buildah keeps, so that the next build need not do them: all are forgotten beyond it."""
NEXT = """\
The operator on the test cluster, after `make cluster-up`; the last three in the shell of `make cluster-shell`:

  .venv/bin/python -m tests.kube_node load {archives}
  make cluster-shell
  helm upgrade --install rstar2 helm/rstar2 --namespace rstar2 --create-namespace --wait {values}
  .venv/bin/python -m tests.kube_node job tiny.yaml | kubectl apply -f -
  kubectl get arl -w
"""
OF_PIP = ("PIP_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def reference(name: str) -> str:
    """How pods name the image."""
    return f"rstar2.test/{name}:{_key(name)}"


def archive(name: str) -> Path:
    """The image as `ctr images import` takes it, built when the cache has none of these inputs."""
    tag = reference(name)
    target = CACHE / "cluster-images" / f"{name}-{tag.rpartition(':')[2]}.tar"
    if not target.exists():
        with only_one(CACHE / "cluster-image-build.lock", f"building the image {name}"):
            if not target.exists():
                with step(f"image {name}"):
                    _build(name, tag, target)
                    _forget_old(target.parent.glob(f"{name}-*.tar"))
    target.touch()
    return target


def values() -> tuple[str, ...]:
    """Values of the chart (`--set`) with which all that it starts is on the node: nothing is pulled.

    The images of trainer and engines are too large to build here; `python -m tests.kube_node job` gives their pods this
    machine's Python.
    """
    operator, _, tag = reference("operator").rpartition(":")
    return (
        *(f"image.repository={operator}", f"image.tag={tag}", "image.pullPolicy=Never"),
        *(f"jobImages.{role}={images.BASE}" for role in ("trainer", "rollout", "redis")),
        f"jobImages.judge={reference('judge')}",
    )


def _key(name: str) -> str:
    digest = hashlib.sha256()
    for path in [ROOT / "images" / name / "Containerfile", *_sources()]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return f"sha{digest.hexdigest()[:12]}"  # helm's --set takes a tag of digits alone for a number


def _sources() -> list[Path]:
    found = []
    for name in INPUTS:
        path = ROOT / name
        found += [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _build(name: str, tag: str, target: Path) -> None:
    _ensure_bases()
    settings = [item for key in os.environ if key.startswith(OF_PIP) for item in ("--build-arg", key)]
    folders = [CERTIFICATES, *(Path(one) for one in os.environ.get("PIP_FIND_LINKS", "").split())]
    mounts = [item for one in folders if one.is_dir() for item in ("--volume", f"{one}:{one}:ro")]
    _buildah(
        *("build", "--quiet", "--layers", "--pull-never", "--network=host", *settings, *mounts),
        *("--build-arg", f"BASE={images.BASE}", "--build-arg", f"BUILD_BASE={BUILD_BASE}"),
        *("--file", str(ROOT / "images" / name / "Containerfile"), "--tag", tag, str(ROOT)),
    )
    fresh = target.with_suffix(f".{os.getpid()}")
    _buildah("push", "--quiet", tag, f"docker-archive:{fresh}:{tag}")
    fresh.replace(target)


def _forget_old(archives: Iterable[Path]) -> None:
    """Remove what has not been used for longest: each change of the sources leaves another half gigabyte."""
    for old in sorted(archives, key=lambda one: one.stat().st_mtime)[:-KEPT]:
        old.unlink()
        name, _, key = old.stem.rpartition("-")
        with contextlib.suppress(NoCluster):  # buildah's own copy may be gone already
            _buildah("rmi", f"rstar2.test/{name}:{key}")
    if len(_buildah("images", "--quiet", "--filter", "dangling=true").split()) > LAYERS_KEPT:
        _buildah("rmi", "--prune")


def _ensure_bases() -> None:
    """Give buildah the two bases, once."""
    known = _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()
    if images.BASE not in known:
        _buildah("pull", "--quiet", f"docker-archive:{images.archive('base')}")
    if BUILD_BASE in known:
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
    settings = {**environment(), "STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, check=False)
    if done.returncode != 0:
        raise NoCluster(f"`{' '.join(command[:6])} ...` ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    built = [str(archive(one)) for one in NAMES]
    print(*built, sep="\n", flush=True)
    sets = "".join(f" \\\n    --set {value}" for value in values())
    print("\n" + NEXT.format(archives=" ".join(built), values=sets.lstrip(" ")), end="", file=sys.stderr)
