"""An operator that is newer than the definition of AgenticRLJob, on a real API server."""

from __future__ import annotations

from pathlib import Path

from rstar2_train.api.crd import build_crd
from tests.support.job_controller import JobController
from tests.support.kube_apiserver import KubeApiserver
from tests.support.operator_process import OperatorProcess

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/agenticrljobs.rstar2.dev"


def test_operator_waits_for_an_older_definition(api: KubeApiserver, tmp_path: Path) -> None:
    """It does not lead and is not ready before the definition has all fields; its log names those and the remedy."""
    log = tmp_path / "operator.log"
    older = build_crd()
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["status"]["properties"]["faultyNodes"]
    merge = "application/merge-patch+json"
    removed = {"spec": older["spec"]}
    api.request("PATCH", DEFINITION, removed, media=merge)
    controller = JobController(api)
    with OperatorProcess(api.kubeconfig, log=log) as operator:
        controller.wait(lambda: log.exists() and "it lacks status.faultyNodes" in log.read_text(), "no message")
        assert operator.page("/healthz") == "ok" and operator.page("/readyz") == ""
        controller.submit("demo")
        controller.play_for(5)
        assert controller.status("demo") == {} and controller.attempts == []
        api.request("PATCH", DEFINITION, {"spec": build_crd()["spec"]}, media=merge)
        controller.wait(lambda: controller.attempts == ["demo-s0-1"], "the operator does not lead")
        assert operator.page("/readyz") == "leader"
