"""The programs of a job's pods with the state in a bucket: each process starts on an empty disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2_train.api.contracts import ExitCode, Outcome
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.state_dir import JobState
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.job_state import fetch_newest

pytestmark = pytest.mark.timeout(1200)
SFT = {"data": "generated://tiny-smoke/sft.jsonl", "epochs": 0.1, "batchSize": 8, "maxTokens": 256}
SOURCE = {
    "metadata": {"name": "pods", "uid": "11111111-2222-3333-4444-555555555555"},
    "spec": {
        "model": {"source": "generated://tiny-smoke/base", "systemPrompt": "s", "promptPrefix": ""},
        "accelerator": {"vendor": "None"},
        "trainer": {"replicas": 1, "gpusPerReplica": 0, "activationCheckpointing": "Never"},
        "storage": {"url": "s3://team/runs"},
        "stages": [{"name": "sft", "type": "SFT", "sft": SFT}],
    },
}


def test_bucket_pods_pass_the_state_on(tmp_path: Path) -> None:
    """Preparation and attempt complete without a common disk; an older attempt that starts late changes nothing."""
    state, log = JobState(tmp_path / "disk" / "pods"), tmp_path / "termination-log"
    source = AgenticRLJob.model_validate(SOURCE)
    job, _ = resolved_sources(source, str(state.root))
    for name, body in (("job.json", job), ("source.json", source)):
        body.spec.storage.url = f"file://{tmp_path}/bucket"  # a bucket of this machine
        (tmp_path / name).write_text(body.model_dump_json(exclude_none=True))

    def run(program: str, *arguments: str) -> int:
        """Run the program of a pod on an empty disk."""
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
        log.write_text("")
        command = [sys.executable, "-m", "rstar2_train.launch.pod", program, "--job", str(tmp_path / "job.json")]
        command += ["--state", str(state.root), "--termination-log", str(log), "--bucket", *arguments]
        env = os.environ | {"POD_IP": "127.0.0.1", "HOSTNAME": "pods-sft-1-0"}
        return subprocess.run(command, env=env, check=False).returncode

    attempt = ("--stage", "sft", "--nodes", "1", "--subdomain", "pods", "--attempt")
    assert run("prepare") == ExitCode.DONE
    assert run("launch", *attempt, "2") == ExitCode.DONE
    outcome = Outcome.model_validate_json(log.read_text())
    assert outcome.outcome == "completed"
    assert run("launch", *attempt, "1") == ExitCode.RETRYABLE
    assert "StaleAttempt" in log.read_text() and "attempt 2 of stage sft has started" in log.read_text()
    copy = JobState(tmp_path / "copy")
    copy.root.mkdir()
    fetch_newest(LocalFolder(tmp_path / "bucket" / "pods"), copy)
    assert copy.stage("sft").outcome() == outcome
    assert list(copy.stage("sft").model.glob("*.safetensors"))
