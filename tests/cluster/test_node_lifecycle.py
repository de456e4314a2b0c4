"""Boot and removal of clusters: two on one machine, a killed one, orphans; and errors where none can boot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from scripts.setup import ROOT
from tests.kube_node import boot, namespaces
from tests.kube_node.cluster import Cluster, CommandFailed, attach
from tests.kube_node.fixtures import PREFIX, remove_orphans, session_name
from tests.kube_node.layout import NODE, Layout
from tests.kube_node.namespaces import wait_for
from tests.kube_node.pods import pod
from tests.kube_node.requirements import ClusterUnavailable


@pytest.fixture
def second(cluster: Cluster) -> Iterator[Cluster]:
    """Boot a second cluster next to the one of the session."""
    if cluster.layout is None:
        pytest.skip("RSTAR2_KUBECONFIG is set: no cluster is booted here")
    name = session_name()
    yield boot.up(name)
    boot.down(name)


def test_node_two_clusters_are_independent(cluster: Cluster, second: Cluster) -> None:
    """Two clusters run on one machine; `down` leaves nothing of one and does not affect the other."""
    layout = second.node_layout()
    assert layout.subnet != cluster.node_layout().subnet
    second.apply([pod("default", "only-here", runtimeClassName="gvisor")])
    second.wait("default", "pod/only-here", "condition=Ready")
    assert boot.up(layout.name).kubeconfig == second.kubeconfig, "`up` of a running cluster must change nothing"
    with pytest.raises(CommandFailed, match="not found"):
        cluster.kubectl("get", "pod", "only-here")
    assert boot.leftovers(layout)

    assert boot.down(layout.name)
    assert boot.leftovers(layout) == []
    assert not boot.down(layout.name), "`down` of a missing cluster must change nothing"
    with pytest.raises(ClusterUnavailable, match="make cluster-up"):
        attach(layout.name)
    cluster.wait("default", f"node/{NODE}", "condition=Ready")
    cluster.kubectl("get", "--raw=/readyz")


def test_node_killed_init_is_cleaned_up(second: Cluster) -> None:
    """`down` removes a cluster whose init.py was killed."""
    layout = second.node_layout()
    pid = namespaces.init_pid(layout)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for("exit of init.py", lambda: namespaces.init_pid(layout) is None, 180)
    assert layout.folder.exists()
    boot.down(layout.name)
    assert boot.leftovers(layout) == []


def test_node_orphans_of_killed_tests_are_removed(cluster: Cluster) -> None:
    """A cluster whose test process is dead is removed, also by two at a time; the one of this process is kept."""
    with subprocess.Popen(["true"]) as dead:
        pass
    orphan, own = Layout(f"{PREFIX}{dead.pid}-0a1b2c"), Layout(session_name())
    for layout in (orphan, own):
        layout.folder.mkdir()
    for file in range(2000):
        (orphan.folder / f"{file}.log").touch()
    try:
        with ThreadPoolExecutor() as pool:
            for removal in [pool.submit(remove_orphans), pool.submit(remove_orphans)]:
                removal.result()
        assert not orphan.folder.exists() and own.folder.exists()
    finally:
        boot.down(own.name)


def test_node_killed_service_is_restarted(cluster: Cluster) -> None:
    """init.py restarts a killed service and records its exit code."""
    before = cluster.services()["kube-scheduler"]
    cluster.run_on_node("kill", "-KILL", str(before["pid"]))
    wait_for("the scheduler", lambda: cluster.services()["kube-scheduler"]["starts"] > before["starts"], 180)
    assert cluster.services()["kube-scheduler"]["lastExit"] == -signal.SIGKILL


def test_node_audit_log_names_user_and_object(cluster: Cluster, namespace: str) -> None:
    """A write is in the audit log with its verb, object and user."""
    cluster.kubectl("create", "configmap", "noted", "-n", namespace)

    def is_logged() -> bool:
        writes = [entry for entry in cluster.audit_events() if entry.get("objectRef", {}).get("namespace") == namespace]
        return ("create", "noted", "rstar2-admin") in [
            (entry["verb"], entry["objectRef"].get("name"), entry["user"]["username"]) for entry in writes
        ]

    wait_for("the audit log", is_logged, 120)


CHECK = """
import os
from tests.kube_node import requirements
{before}
try:
    requirements.check()
except requirements.ClusterUnavailable as problem:
    print(problem)
"""


def check_output(before: str = "", prefix: tuple[str, ...] = ()) -> str:
    command = [*prefix, sys.executable, "-c", CHECK.format(before=before)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout


def test_requirements_without_root_name_the_fix() -> None:
    """The message of a user without root names root and RSTAR2_KUBECONFIG."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to drop it")
    output = check_output("os.setuid(65534)")
    assert "needs root" in output and "RSTAR2_KUBECONFIG" in output


def test_requirements_without_namespaces_name_them() -> None:
    """Without CAP_SYS_ADMIN the message lists the namespaces and the error of the kernel."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to drop a capability")
    without_admin = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    output = check_output(prefix=without_admin)
    assert "namespaces (mount, network, PID, UTS, IPC, cgroup)" in output and "Operation not permitted" in output


def test_attach_unreachable_kubeconfig_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file of RSTAR2_KUBECONFIG."""
    missing = tmp_path / "kubeconfig"
    missing.write_text('{"apiVersion": "v1", "kind": "Config"}')
    monkeypatch.setenv("RSTAR2_KUBECONFIG", str(missing))
    with pytest.raises(ClusterUnavailable, match=str(missing)):
        attach()
