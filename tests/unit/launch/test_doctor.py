"""`rstar2 doctor` and `rstar2 verify`: missing parts are named, with the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.cli.main import main
from rstar2_train.launch.doctor import cluster, machine
from rstar2_train.launch.doctor.findings import Finding


def state_of(findings: list[Finding], subject: str) -> str:
    (finding,) = [item for item in findings if item.subject == subject]
    assert finding.detail and (finding.remedy or finding.state == "ok")
    return finding.state


def test_doctor_names_missing_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without redis-server, runsc and vLLM no job runs; without g++ most do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("RSTAR2_RUNSC", str(tmp_path / "runsc"))
    monkeypatch.setattr(machine, "ALTERNATIVES", {"vllm": ("no-such-distribution",)})
    findings = machine.examine(tmp_path / "new" / "state")
    states = {name: state_of(findings, name) for name in ("redis-server", "gVisor", "g++", "vllm", "torch")}
    assert states == {"redis-server": "missing", "gVisor": "missing", "g++": "note", "vllm": "missing", "torch": "ok"}


def test_doctor_refuses_a_runsc_that_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program of another machine exists, but prints no version."""
    program = tmp_path / "runsc"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("RSTAR2_RUNSC", str(program))
    assert state_of(machine.examine(tmp_path), "gVisor") == "missing"


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({}, "ok"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "note"),
        ({"http_proxy": "http://proxy:3128", "NO_PROXY": "localhost, 127.0.0.1,.lab"}, "ok"),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "*"}, "ok"),
    ],
)
def test_doctor_finds_a_proxy_for_requests_to_this_machine(environ: dict[str, str], state: str) -> None:
    """Orchestrator, engines and judge talk over loopback, which a proxy would break."""
    assert machine._proxy(environ).state == state


def test_doctor_prints_json_and_fails_if_a_part_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is for scripts."""
    monkeypatch.setenv("RSTAR2_RUNSC", str(tmp_path / "none"))
    assert main(["doctor", "--json", "--state", str(tmp_path)]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert {"subject", "state", "detail", "remedy"} == set(rows[0])
    assert main(["doctor", "--state", str(tmp_path)]) == 1
    assert "missing: gVisor" in capsys.readouterr().out


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "lab"}, **fields}


READY = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"amd.com/gpu": "8"}}
LABELS = {"helm.sh/chart": "rstar2-0.1.0", "app.kubernetes.io/component": "operator"}
OPERATOR = {"metadata": {"name": "op", "namespace": "rstar2", "labels": LABELS}}
COMPLETE: dict[str, list[dict[str, Any]] | None] = {
    "customresourcedefinitions": [named(cluster.JOBS)],
    "deployments": [{**OPERATOR, "status": {"readyReplicas": 1}}],
    "nodes": [named("a", status=READY), named("b", status={"conditions": []})],
    "runtimeclasses": [named("gvisor", handler="runsc")],
    "storageclasses": [named("shared", provisioner="nfs.csi.k8s.io")],
    "pods": [named("cilium-x7")],
    "localqueues.kueue.x-k8s.io": [named("team")],
}


def test_doctor_of_a_complete_cluster_finds_nothing_missing() -> None:
    """Each line has a detail."""
    findings = cluster.examine(COMPLETE.get)
    assert {finding.state for finding in findings} == {"ok"}
    assert "8 amd.com/gpu" in " ".join(finding.detail for finding in findings)


@pytest.mark.parametrize(
    ("kind", "objects", "subject", "state"),
    [
        ("customresourcedefinitions", [], "AgenticRLJob", "missing"),
        ("customresourcedefinitions", None, "AgenticRLJob", "note"),
        ("deployments", [OPERATOR], "operator", "missing"),
        ("deployments", [], "operator", "missing"),
        ("nodes", [named("b", status={})], "nodes", "missing"),
        ("nodes", [named("b", status={})], "accelerators", "note"),
        ("nodes", None, "nodes", "note"),
        ("runtimeclasses", [named("kata", handler="kata-qemu")], "gVisor", "missing"),
        ("storageclasses", [named("local", provisioner="rancher.io/local-path")], "storage", "note"),
        ("storageclasses", None, "storage", "note"),
        ("pods", [named("kindnet-1")], "NetworkPolicy", "note"),
        ("localqueues.kueue.x-k8s.io", None, "Kueue", "ok"),
        ("localqueues.kueue.x-k8s.io", [], "Kueue", "note"),
    ],
)
def test_doctor_of_an_incomplete_cluster(kind: str, objects: Any, subject: str, state: str) -> None:
    """A missing part, and one that cannot be listed, is named with the remedy."""
    assert state_of(cluster.examine({**COMPLETE, kind: objects}.get), subject) == state


@pytest.mark.parametrize(("answer", "code", "outcome"), [("0.5", 0, "equal"), ("0.6", 1, "different")])
def test_verify_explains_a_verdict(answer: str, code: int, outcome: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict, its reason and what both texts were read as."""
    assert main(["verify", "--known", r"\frac{1}{2}", "--answer", answer]) == code
    printed = capsys.readouterr().out
    assert printed.startswith(f"{outcome}: ") and "number 1, number 2" in printed
    assert main(["verify", "--known", "1"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bucket", "file:///runs"], "--bucket file:///runs: must be s3://BUCKET/KEY"),
        (["--bucket", "s3://team/a b"], "--bucket s3://team/a b: must be s3://BUCKET/KEY"),
        (
            ["--bucket", "s3://abc/d", "--endpoint-url", "s3.example"],
            "--endpoint-url s3.example: must be an address",
        ),
        (
            ["--bucket", "s3://abc/d", "--region", "eu west"],
            "--region eu west: must be a name such as eu-central-1",
        ),
    ],
)
def test_doctor_names_an_invalid_address(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An argument of the bucket that no job may have is an error message with the allowed form."""
    assert main(["doctor", *arguments]) == 1
    assert message in capsys.readouterr().err
