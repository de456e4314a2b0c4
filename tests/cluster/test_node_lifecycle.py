"""Clusters come and go: side by side, killed half-way, torn down to nothing; and what is said where none can boot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scripts.setup import ROOT
from tests.kube_node import boot, namespaces
from tests.kube_node.cluster import Cluster, CommandFailed, attach
from tests.kube_node.fixtures import PREFIX, remove_orphans, session_name
from tests.kube_node.layout import NODE, Layout
from tests.kube_node.namespaces import wait_for
from tests.kube_node.pods import pod
from tests.kube_node.requirements import NoCluster


@pytest.fixture
def second(cluster: Cluster) -> Iterator[Cluster]:
    """Another cluster beside the session's."""
    if cluster.layout is None:
        pytest.skip("RSTAR2_KUBECONFIG is set: clusters are not booted here")
    name = session_name()
    yield boot.up(name)
    boot.down(name)


def test_two_clusters_stand_side_by_side_and_one_goes_without_a_trace(cluster: Cluster, second: Cluster) -> None:
    layout = second.own()
    assert layout.subnet != cluster.own().subnet
    second.apply([pod("default", "only-here", runtimeClassName="gvisor")])
    second.wait("default", "pod/only-here", "condition=Ready")
    assert boot.up(layout.name).kubeconfig == second.kubeconfig, "up is a no-op while it runs"
    with pytest.raises(CommandFailed, match="not found"):
        cluster.kubectl("get", "pod", "only-here")
    assert boot.leftovers(layout)

    assert boot.down(layout.name)
    assert boot.leftovers(layout) == []
    assert not boot.down(layout.name), "down is a no-op when there is nothing"
    with pytest.raises(NoCluster, match="make cluster-up"):
        attach(layout.name)
    cluster.wait("default", f"node/{NODE}", "condition=Ready")  # the other one stands
    cluster.kubectl("get", "--raw=/readyz")


def test_a_cluster_whose_first_process_was_killed_is_cleaned_up(second: Cluster) -> None:
    layout = second.own()
    pid = namespaces.init_pid(layout)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for("the end", lambda: namespaces.init_pid(layout) is None, 30)
    assert layout.folder.exists()
    boot.down(layout.name)
    assert boot.leftovers(layout) == []


def test_what_killed_tests_left_goes_with_the_next_ones(cluster: Cluster) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    orphan, ours = Layout(f"{PREFIX}{ended.pid}-0a1b2c"), Layout(session_name())
    for layout in (orphan, ours):
        layout.folder.mkdir()
    try:
        remove_orphans()
        assert not orphan.folder.exists() and ours.folder.exists()
    finally:
        boot.down(ours.name)


def test_a_service_that_dies_is_started_again(cluster: Cluster) -> None:
    before = cluster.services()["kube-scheduler"]
    cluster.inside("kill", "-KILL", str(before["pid"]))
    wait_for("the scheduler", lambda: cluster.services()["kube-scheduler"]["starts"] > before["starts"], 30)
    assert cluster.services()["kube-scheduler"]["lastExit"] == -signal.SIGKILL


def test_the_audit_log_names_who_wrote_what(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "configmap", "noted", "-n", namespace)

    def noted() -> bool:
        writes = [entry for entry in cluster.audit() if entry.get("objectRef", {}).get("namespace") == namespace]
        return ("create", "noted", "rstar2-admin") in [
            (entry["verb"], entry["objectRef"].get("name"), entry["user"]["username"]) for entry in writes
        ]

    wait_for("the audit log", noted, 10)


CHECK = """
import os
from tests.kube_node import requirements
{before}
try:
    requirements.check()
except requirements.NoCluster as problem:
    print(problem)
"""


def said_by_check(before: str = "", prefix: tuple[str, ...] = ()) -> str:
    command = [*prefix, sys.executable, "-c", CHECK.format(before=before)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout


def test_without_root_it_says_so() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give root up")
    said = said_by_check("os.setuid(65534)")
    assert "needs root" in said and "RSTAR2_KUBECONFIG" in said


def test_without_the_right_to_make_namespaces_it_says_which() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a capability up")
    lose = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    said = said_by_check(prefix=lose)
    assert "namespaces of its own" in said and "Operation not permitted" in said


def test_a_kubeconfig_that_does_not_answer_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "kubeconfig"
    missing.write_text('{"apiVersion": "v1", "kind": "Config"}')
    monkeypatch.setenv("RSTAR2_KUBECONFIG", str(missing))
    with pytest.raises(NoCluster, match=str(missing)):
        attach()
