"""A cluster for tests and people: kubectl, images, files and services, of a booted node or of an existing cluster.

`boot.up` creates a `Cluster`; `attach` connects to one. With RSTAR2_KUBECONFIG, `attach` returns the cluster of that
file. Methods that need the node (its images, processes, audit log) then raise `ClusterUnavailable`.
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
from tests.kube_node.requirements import ClusterUnavailable, root_environment

Object = dict[str, Any]
EXEC_TRIES = 5
EXIT_CODE = "\nexit code "
WITH_EXIT_CODE = """"$@"
printf '\\nexit code %d' $?"""
"""Script that runs its arguments as a command and prints the exit code of it."""


class CommandFailed(AssertionError):
    """A command failed. The message has the command, its exit code and its output."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `layout` is None if it was not booted here."""

    kubeconfig: Path
    layout: Layout | None = None

    # --------------------------------------------------------------------------------------------- kubectl

    def environment(self) -> dict[str, str]:
        """Return an environment in which kubectl, helm and the Python client use this cluster."""
        path = os.pathsep.join([binaries.search_path(), root_environment()["PATH"]])
        return {**os.environ, "PATH": path, "KUBECONFIG": str(self.kubeconfig)}

    def run(
        self, *command: str, check: bool = True, stdin: str = "", seconds: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (kubectl, helm) on this machine, in the cluster's environment.

        Raises:
            CommandFailed: with `check`, if it exits with another code than 0.
        """
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=self.environment(), timeout=seconds, check=False
        )
        if check and done.returncode != 0:
            raise CommandFailed(
                f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done

    def kubectl(self, *arguments: str, stdin: str = "", seconds: float = 600) -> str:
        """Run kubectl and return its output."""
        return self.run("kubectl", *arguments, stdin=stdin, seconds=seconds).stdout

    def get(self, *arguments: str) -> Object:
        """Return the objects of `kubectl get`."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, objects: str | Iterable[Mapping[str, Any]], *arguments: str) -> None:
        """Apply YAML text or objects, server-side."""
        if not isinstance(objects, str):
            objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", *arguments, stdin=objects)

    def exec(self, namespace: str, pod: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command in a pod, and again if the connection to the pod broke: the pod prints the exit code.

        kubectl itself can then exit with code 0 and without an output, as on a very busy machine.

        Raises:
            CommandFailed: with `check`, if it exits with another code than 0; also if the connection broke each time.
        """
        script = ("sh", "-c", WITH_EXIT_CODE, "sh", *command)
        for _ in range(EXEC_TRIES):
            done = self.run("kubectl", "exec", "-n", namespace, pod, "--", *script, check=False)
            output, ended, code = done.stdout.rpartition(EXIT_CODE)
            if ended and (code == "0" or not check):
                return subprocess.CompletedProcess(command, int(code), output, done.stderr)
            if ended:
                break
        raise CommandFailed(f"`{' '.join(command)}` in pod {pod} failed: {done}")

    def wait(self, namespace: str, resource: str, condition: str, seconds: float = 400) -> None:
        """Run `kubectl wait`; a failure lists the pods and events of the namespace."""
        command = ["kubectl", "wait", "-n", namespace, resource, f"--for={condition}", f"--timeout={seconds:.0f}s"]
        done = self.run(*command, check=False, seconds=seconds + 30)
        if done.returncode != 0:
            raise CommandFailed(
                f"{resource} is not {condition} after {seconds:.0f} s: {done.stderr}{self.describe(namespace)}"
            )

    def describe(self, namespace: str) -> str:
        """Return the pods and events of a namespace, for a failure message."""
        pods = self.run("kubectl", "get", "pods", "-n", namespace, "-o", "wide", check=False)
        events = self.run("kubectl", "get", "events", "-n", namespace, "--sort-by=.lastTimestamp", check=False)
        return f"\n{pods.stdout}\n{events.stdout[-4000:]}"

    # --------------------------------------------------------------------------------------------- the node

    def node_layout(self) -> Layout:
        """Return the layout of a booted cluster."""
        if self.layout is None:
            raise ClusterUnavailable(
                "The cluster of RSTAR2_KUBECONFIG was not booted here, so its node cannot be reached."
            )
        return self.layout

    def run_on_node(
        self, *command: str, check: bool = True, stdin: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the node: inside the cluster's namespaces, as root."""
        layout = self.node_layout()
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
                f"On the node, `{' '.join(command)}` failed with exit code {done.returncode}:\n"
                f"{done.stdout}{done.stderr}"
            )
        return done

    def load_image(self, archive: Path) -> None:
        """Load an image archive of `docker save`, `buildah push docker-archive:` or images.py into the node."""
        self.run_on_node("ctr", "-n", "k8s.io", "images", "import", "-", stdin=archive)

    def services(self) -> Object:
        """Return the services of the node: name -> pid, number of starts, last exit code."""
        listing = self.node_layout().folder / "running.json"
        return json.loads(listing.read_text()) if listing.exists() else {}

    def write_services(self, services: Object) -> None:
        """Write the complete list of services and make init.py read it."""
        layout = self.node_layout()
        new = layout.folder / "services.new"
        new.write_text(json.dumps(services, indent=1))
        new.replace(layout.folder / "services.json")
        pid = namespaces.init_pid(layout)
        if pid is None:
            raise ClusterUnavailable(f"Cluster {layout.name} does not run. Boot it with `make cluster-up`.")
        os.kill(pid, signal.SIGHUP)

    def audit_events(self) -> list[Object]:
        """Return the requests to the API server, oldest first; components.AUDIT_POLICY omits some."""
        text = self.node_layout().audit_log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # the last one may be torn

    # --------------------------------------------------------------------------------- this machine's folders

    def mount_python(self, namespace: str) -> tuple[list[Object], list[Object]]:
        """Create claims for this machine's Python; return `volumes` and `volumeMounts` of a pod that uses them."""
        folders = volumes.python_folders()
        for name, folder in folders.items():
            self.apply(volumes.host_folder(namespace, name, folder))
            bound = ["--for=jsonpath={.status.phase}=Bound", "--timeout=120s"]
            self.kubectl("wait", "-n", namespace, f"pvc/{name}", *bound)
        return volumes.mounts(folders)


def attach(name: str | None = None) -> Cluster:
    """Return the cluster of RSTAR2_KUBECONFIG, or the booted cluster of this name.

    Raises:
        ClusterUnavailable: it does not run or does not answer.
    """
    existing = os.environ.get("RSTAR2_KUBECONFIG")
    if existing:
        cluster = Cluster(Path(existing).resolve())
        done = cluster.run("kubectl", "get", "--raw=/readyz", check=False)
        if done.returncode != 0:
            raise ClusterUnavailable(f"RSTAR2_KUBECONFIG={existing}: no answer from the cluster: {done.stderr.strip()}")
        return cluster
    layout = read_layout(name or default_name())
    if layout is None or namespaces.init_pid(layout) is None:
        raise ClusterUnavailable(f"Cluster {name or default_name()} does not run. Boot it with `make cluster-up`.")
    return Cluster(layout.kubeconfig, layout)


def read_layout(name: str) -> Layout | None:
    """Return the layout of a cluster that was booted here, whether or not it still runs."""
    record = CLUSTERS / name / "cluster.json"
    return Layout(name, json.loads(record.read_text())["subnet"]) if record.exists() else None
