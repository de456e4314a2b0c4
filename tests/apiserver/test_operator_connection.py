"""The operator behind a bad connection to a real API server: late watches, an outage, and events that it missed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rstar2_operator.settings import LEASE_SECONDS
from rstar2_train.api.crd import build_crd
from tests.support.api_proxy import ApiProxy
from tests.support.job_controller import BATCH, JOBS, PODS, JobController
from tests.support.kube_apiserver import KubeApiserver
from tests.support.operator_process import OperatorProcess
from tests.support.simulated_cluster import manifest

EVENTS = "/apis/events.k8s.io/v1/namespaces/lab/events"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/lab/networkpolicies"
APPS = "/apis/apps/v1/namespaces/lab"
CONFIGS = "/api/v1/namespaces/lab/configmaps"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/agenticrljobs.rstar2.dev"
FIRST = "demo-s0-1"


@pytest.fixture
def jobs(api: KubeApiserver) -> JobController:
    """Provide an API server without nodes, and the test as its controllers."""
    return JobController(api)


def identities(jobs: JobController) -> set[str]:
    """Return the UIDs of all Jobs and pods."""
    return {each["metadata"]["uid"] for path in (BATCH, PODS) for each in jobs.api.request("GET", path)["items"]}


def reasons(jobs: JobController) -> list[str]:
    """Return the reasons of all events."""
    return [str(event["reason"]) for event in jobs.api.request("GET", EVENTS)["items"]]


def test_watch_300_ms_late_keeps_a_release(jobs: JobController) -> None:
    """A job that releases its pods waits until its retry time, although its own writes come back late."""
    jobs.has_nodes = False
    with ApiProxy(jobs.api, watch_delay=0.3) as proxy, OperatorProcess(proxy.kubeconfig):
        jobs.submit("demo", pendingDeadlineSeconds=3)
        jobs.wait(lambda: "Released all pods" in jobs.status("demo").get("message", ""), "the job is not released")
        jobs.wait(lambda: jobs.api.request("GET", PODS)["items"] == [], "its pods remain")
        jobs.wait(lambda: "SchedulingTimeout" in reasons(jobs), "no event")
        jobs.play_for(5)
        assert jobs.attempts == [FIRST] and jobs.api.request("GET", PODS)["items"] == []
        events = reasons(jobs)
        assert events.count("SchedulingTimeout") == 1, events


def test_api_server_away_changes_no_object(jobs: JobController) -> None:
    """After an outage that costs the operator its Lease, the next one finds the job as it was and keeps its pods."""
    with ApiProxy(jobs.api) as proxy:
        duration = {"RSTAR2_LEASE_SECONDS": str(LEASE_SECONDS)}
        with OperatorProcess(proxy.kubeconfig, identity="first", **duration) as first:

            def runs() -> bool:
                first.restart_if_ended()  # a busy machine can cost it its short Lease
                return jobs.pods() == [f"{FIRST}-0"]

            jobs.submit("demo")
            jobs.wait(runs, "the job does not run")
            jobs.play_for(2)
            before = {
                each["metadata"]["uid"] for path in (BATCH, PODS) for each in jobs.api.request("GET", path)["items"]
            }
            proxy.disconnect()
            assert first.process.wait(10 * LEASE_SECONDS) == 1  # another replica may lead
        proxy.connect()
        with OperatorProcess(proxy.kubeconfig, identity="second") as second:
            jobs.wait(lambda: second.page("/readyz") == "leader", "no operator leads")
            jobs.play_for(2)
            after = {
                each["metadata"]["uid"] for path in (BATCH, PODS) for each in jobs.api.request("GET", path)["items"]
            }
            assert after == before
            degraded = [each for each in jobs.status("demo")["conditions"] if each["type"] == "Degraded"]
            assert [each["status"] for each in degraded] == ["False"], degraded
            jobs.succeed("demo", "s0")
            jobs.wait(lambda: jobs.status("demo").get("phase") == "Succeeded", "the job does not succeed")
    assert jobs.attempts == [FIRST]


def test_recreated_job_does_not_inherit_success(jobs: JobController) -> None:
    """A job that was deleted and created again while no operator ran starts from its first stage."""
    with OperatorProcess(jobs.api.kubeconfig):
        jobs.submit("demo")
        jobs.wait(lambda: jobs.pods() == [f"{FIRST}-0"], "the job does not run")
        jobs.succeed("demo", "s0")
        jobs.wait(lambda: jobs.status("demo").get("phase") == "Succeeded", "the job does not succeed")
    jobs.api.request("DELETE", f"{JOBS}/demo")  # its objects stay: no garbage collector runs
    jobs.submit("demo")
    with OperatorProcess(jobs.api.kubeconfig):
        jobs.wait(lambda: bool(jobs.status("demo")), "the job has no status")
        jobs.play_for(3)
        status = jobs.status("demo")
        assert status["phase"] != "Succeeded" and status["stages"][0]["phase"] == "Pending", status


def test_upgrade_touches_no_object_of_a_running_job(jobs: JobController) -> None:
    """Operators of other versions, newer and older, leave all objects as they are; the next attempt is of the last.

    The newer definition has a new default, which changes the spec of the stored job.
    """
    newer = {f"RSTAR2_{role}_IMAGE": f"registry/{role.lower()}:2" for role in ("TRAINER", "ROLLOUT", "JUDGE", "REDIS")}
    newer |= {"RSTAR2_POD_USER": "1000", "RSTAR2_IMAGE_PULL_POLICY": "Always"}
    define(jobs, has_default=False)
    with OperatorProcess(jobs.api.kubeconfig) as operator:
        jobs.submit("demo", "g")
        jobs.wait(lambda: jobs.pods() == ["demo-g0-1-0"], "the job does not run")
        jobs.wait(lambda: is_stable(jobs), "the operator writes without end")
        before = versions(jobs)
        operator.terminate()
    define(jobs, has_default=True)
    for settings in (newer, {}):
        with OperatorProcess(jobs.api.kubeconfig, **settings) as operator:
            jobs.wait(lambda: "rstar2_operator_jobs{" in operator.page("/metrics"), "no operator leads")
            jobs.play_for(1)
            assert versions(jobs) == before
            operator.terminate()
    with OperatorProcess(jobs.api.kubeconfig, **newer):
        jobs.api.request("DELETE", f"{BATCH}/demo-g0-1", {"propagationPolicy": "Background"})
        jobs.wait(lambda: jobs.pods() == ["demo-g0-2-0"], "no second attempt")
        engines = jobs.api.request("GET", f"{APPS}/deployments/demo-rollout")["spec"]["template"]["spec"]
        assert engines["containers"][0]["image"] == "registry/rollout:2"


def define(jobs: JobController, *, has_default: bool) -> None:
    """Install the definition, with or without a default of spec.tracking, and wait until it is served."""
    definition, job = build_crd(), {**manifest("g"), "metadata": {"name": "probe"}}
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if not has_default:
        del schema["properties"]["tracking"]["default"]
    jobs.api.request("PATCH", DEFINITION, {"spec": definition["spec"]}, media="application/merge-patch+json")

    def served() -> bool:
        return ("tracking" in jobs.api.request("POST", f"{JOBS}?dryRun=All", job)["spec"]) is has_default

    jobs.wait(served, "the definition is not served")


def is_stable(jobs: JobController) -> bool:
    """Return whether no object of the job changes for some seconds."""
    before = versions(jobs)
    jobs.play_for(3)
    return versions(jobs) == before


def versions(jobs: JobController) -> dict[str, str]:
    """Return UID -> resourceVersion of all objects of the job."""
    paths = (BATCH, PODS, POLICIES, CONFIGS, f"{APPS}/deployments", f"{APPS}/statefulsets")
    meta = [each["metadata"] for path in paths for each in jobs.api.request("GET", path)["items"]]
    return {each["uid"]: each["resourceVersion"] for each in meta}


def test_deletion_waits_for_pods_and_reports(jobs: JobController) -> None:
    """A deleted job stays with its policies until its pods are gone; also if its operator starts only afterwards."""
    with OperatorProcess(jobs.api.kubeconfig):
        jobs.submit("demo")
        jobs.wait(lambda: jobs.pods() == [f"{FIRST}-0"], "the job does not run")
    jobs.ends_pods = False
    jobs.api.request("DELETE", f"{JOBS}/demo")
    with OperatorProcess(jobs.api.kubeconfig) as operator:
        jobs.wait(lambda: jobs.status("demo").get("phase") == "Deleting", "the deletion does not start")
        jobs.wait(lambda: jobs_of(jobs) == {"demo-prepare"}, "the attempt's Job is not deleted")
        jobs.play_for(2)
        assert jobs.pods() == [f"{FIRST}-0"] and jobs_of(jobs) == {"demo-prepare"}
        assert jobs.api.request("GET", POLICIES)["items"] != []
        jobs.ends_pods = True
        jobs.wait(lambda: jobs.api.request("GET", JOBS)["items"] == [], "the job is not gone")
        assert jobs.pods() == [] and jobs_of(jobs) == {"demo-prepare", "demo-report"}
        assert jobs.attempts == [FIRST]
        jobs.submit("next")
        jobs.wait(lambda: jobs.pods() == ["next-s0-1-0"], "the job does not run")
        hook = subprocess.Popen(
            [sys.executable, "-m", "rstar2_operator.uninstall"],
            env={**os.environ, "KUBECONFIG": str(jobs.api.kubeconfig)},
        )
        jobs.wait(lambda: hook.poll() is not None, "the hook does not end")
        assert hook.returncode == 0 and jobs.api.request("GET", JOBS)["items"] == []
        assert operator.terminate() == 0


def jobs_of(jobs: JobController) -> set[str]:
    """Return the names of all batch Jobs."""
    return {each["metadata"]["name"] for each in jobs.api.request("GET", BATCH)["items"]}
