"""A cluster as tests and people use it: `kubectl`, images, files, services; one of ours, or one that exists.

`boot.py` makes a `Cluster`, `attach` finds one. With RSTAR2_KUBECONFIG set, `attach` gives that cluster instead: what
needs the node itself (loading images, looking at its processes) then says that it cannot.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kube_node import binaries, components, namespaces, volumes
from tests.kube_node.layout import CLUSTERS, Layout, default_name
from tests.kube_node.requirements import NoCluster, environment

Object = dict[str, Any]


class CommandFailed(AssertionError):
    """A command of the cluster ended with an error; the message holds the command and what it said."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster; `layout` is None when it is somebody else's."""

    kubeconfig: Path
    layout: Layout | None = None

    # --------------------------------------------------------------------------------------------- kubectl

    def environment(self) -> dict[str, str]:
        """Environment in which kubectl, helm and Python's client find this cluster."""
        path = os.pathsep.join([binaries.search_path(), environment()["PATH"]])
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.kubeconfig)}

    def run(
        self, *command: str, check: bool = True, stdin: str = "", seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """A command on this machine (kubectl, helm) with the cluster in its environment."""
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=self.environment(), timeout=seconds, check=False
        )
        if check and done.returncode != 0:
            raise CommandFailed(f"`{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def kubectl(self, *arguments: str, stdin: str = "", seconds: float = 120) -> str:
        """What kubectl prints; CommandFailed when it fails."""
        return self.run("kubectl", *arguments, stdin=stdin, seconds=seconds).stdout

    def get(self, *arguments: str) -> Object:
        """`kubectl get ... -o json`, parsed."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, objects: str | Iterable[Mapping[str, Any]], *arguments: str) -> None:
        """Apply YAML text or objects, server-side."""
        if not isinstance(objects, str):
            objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", *arguments, stdin=objects)

    def exec(self, namespace: str, pod: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command inside a pod."""
        return self.run("kubectl", "exec", "-n", namespace, pod, "--", *command, check=check)

    def wait(self, namespace: str, what: str, condition: str, seconds: float = 120) -> None:
        """`kubectl wait`; on failure the namespace's pods and events are part of the message."""
        command = ["kubectl", "wait", "-n", namespace, what, f"--for={condition}", f"--timeout={seconds:.0f}s"]
        done = self.run(*command, check=False, seconds=seconds + 30)
        if done.returncode != 0:
            raise CommandFailed(
                f"{what} is not {condition} after {seconds:.0f} s: {done.stderr}{self.story(namespace)}"
            )

    def story(self, namespace: str) -> str:
        """Pods and events of a namespace, for a message about what went wrong."""
        pods = self.run("kubectl", "get", "pods", "-n", namespace, "-o", "wide", check=False)
        events = self.run("kubectl", "get", "events", "-n", namespace, "--sort-by=.lastTimestamp", check=False)
        return f"\n{pods.stdout}\n{events.stdout[-4000:]}"

    # --------------------------------------------------------------------------------------------- the node

    def own(self) -> Layout:
        if self.layout is None:
            raise NoCluster("RSTAR2_KUBECONFIG names a cluster that was not booted here: its node cannot be reached")
        return self.layout

    def inside(self, *command: str, check: bool = True, stdin: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command on the node: inside the cluster's namespaces, as root."""
        layout = self.own()
        source = stdin.open("rb") if stdin else subprocess.DEVNULL
        try:
            done = subprocess.run(
                [*namespaces.enter(layout), *command],
                stdin=source,
                capture_output=True,
                text=True,
                env=components.service([])["env"],
                check=False,
            )
        finally:
            if stdin:
                source.close()  # type: ignore[union-attr]
        if check and done.returncode != 0:
            raise CommandFailed(
                f"on the node, `{' '.join(command)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done

    def load(self, archive: Path) -> None:
        """Give the node an image: an archive as `docker save`, `buildah push docker-archive:` or images.py write it."""
        self.inside("ctr", "-n", "k8s.io", "images", "import", "-", stdin=archive)

    def services(self) -> Object:
        """What runs on the node: service -> pid, number of starts, last exit code."""
        listing = self.own().folder / "running.json"
        return json.loads(listing.read_text()) if listing.exists() else {}

    def start(self, **commands: list[str]) -> None:
        """Start more services on the node (init.py keeps them running)."""
        layout = self.own()
        listing = layout.folder / "services.json"
        wanted = {
            **json.loads(listing.read_text()),
            **{name: components.service(line) for name, line in commands.items()},
        }
        self.write_services(wanted)

    def stop(self, name: str) -> None:
        """End a service and keep it ended."""
        wanted = json.loads((self.own().folder / "services.json").read_text())
        del wanted[name]
        self.write_services(wanted)

    def write_services(self, wanted: Object) -> None:
        layout = self.own()
        fresh = layout.folder / "services.new"
        fresh.write_text(json.dumps(wanted, indent=1))
        fresh.replace(layout.folder / "services.json")
        pid = namespaces.init_pid(layout)
        if pid is None:
            raise NoCluster(f"Cluster {layout.name} does not run: make cluster-up")
        os.kill(pid, signal.SIGHUP)

    def audit(self) -> list[Object]:
        """What the API server was asked, oldest first (components.AUDIT_POLICY says what is left out)."""
        return [json.loads(line) for line in self.own().audit_log.read_text().splitlines()]

    # --------------------------------------------------------------------------------- this machine's folders

    def show_python(self, namespace: str) -> tuple[list[Object], list[Object]]:
        """Let a namespace's pods mount this machine's Python: its claims, as `volumes` and `volumeMounts` of a pod."""
        folders = volumes.python_folders()
        for name, folder in folders.items():
            self.apply(volumes.machine_folder(namespace, name, folder))
            bound = ["--for=jsonpath={.status.phase}=Bound", "--timeout=30s"]
            self.kubectl("wait", "-n", namespace, f"pvc/{name}", *bound)
        return volumes.mounts(folders)


def attach(name: str | None = None) -> Cluster:
    """The cluster of RSTAR2_KUBECONFIG, or the booted one of this name; NoCluster when there is none that answers."""
    existing = os.environ.get("RSTAR2_KUBECONFIG")
    if existing:
        cluster = Cluster(Path(existing).resolve())
        done = cluster.run("kubectl", "get", "--raw=/readyz", check=False)
        if done.returncode != 0:
            raise NoCluster(f"The cluster of RSTAR2_KUBECONFIG={existing} does not answer: {done.stderr.strip()}")
        return cluster
    layout = recorded(name or default_name())
    if layout is None or namespaces.init_pid(layout) is None:
        raise NoCluster(f"No cluster {name or default_name()} runs here: make cluster-up")
    return Cluster(layout.kubeconfig, layout)


def recorded(name: str) -> Layout | None:
    """The layout of a cluster that was booted here, whether or not it still runs."""
    record = CLUSTERS / name / "cluster.json"
    return Layout(name, json.loads(record.read_text())["subnet"]) if record.exists() else None
