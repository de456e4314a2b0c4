"""The programs of a job's pods with the state in a bucket: each process starts on an empty disk of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rstar2_train.api.contracts import ExitCode, Outcome
from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.sources import resolved_sources
from rstar2_train.api.state_dir import JobState
from rstar2_train.storage.folder import LocalFolder
from rstar2_train.storage.host_objects import HOST_OBJECTS
from rstar2_train.storage.job_state import fetch_newest
from rstar2_train.trainer.checkpoint import verify
from rstar2_train.utils.ports import free_ports
from tests.support.processes import with_own_disk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
SFT = {"data": "generated://tiny-smoke/sft.jsonl", "epochs": 1, "batchSize": 8, "maxTokens": 256}
SOURCE = {
    "metadata": {"name": "pods", "uid": "11111111-2222-3333-4444-555555555555"},
    "spec": {
        "model": {"source": "generated://tiny-smoke/base", "systemPrompt": "s", "promptPrefix": ""},
        "accelerator": {"vendor": "None"},
        "trainer": {"replicas": 2, "gpusPerReplica": 0, "activationCheckpointing": "Never"},
        "storage": {"url": "s3://team/runs"},
        "stages": [{"name": "sft", "type": "SFT", "sft": SFT}],
    },
}
ADDRESSES = ("127.0.0.2", "127.0.0.3")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="rstar2-pods-", dir="/tmp") as folder:
        yield Path(folder)


def test_bucket_pods_pass_the_state_on(folder: Path) -> None:
    """Two trainer pods without a common disk suspend and resume, each with the files that it needs from the bucket.

    An older attempt that starts late changes nothing.
    """
    state, log = JobState(folder / "disk" / "pods"), folder / "termination-log"
    source = AgenticRLJob.model_validate(SOURCE)
    job, _ = resolved_sources(source, str(state.root))
    for name, body in (("job.json", job), ("source.json", source)):
        body.spec.storage.url = f"file://{folder}/bucket"  # a bucket of this machine
        (folder / name).write_text(body.model_dump_json(exclude_none=True))
    (port,) = free_ports(1)

    def start(program: str, *arguments: str, index: int = 0) -> subprocess.Popen[bytes]:
        """Start the program of a pod; the mount of its empty disk hides those of the others."""
        command = [sys.executable, "-m", "rstar2_train.launch.pod", program, "--job", str(folder / "job.json")]
        command += ["--state", str(state.root), "--termination-log", str(log), "--bucket", *arguments]
        if index:
            command = with_own_disk(state.root.parent, command)
        env = os.environ | {"JOB_COMPLETION_INDEX": str(index), "POD_IP": ADDRESSES[index]}
        env |= {"HOSTNAME": f"pods-sft-1-{index}", "RSTAR2_ENGINE_TOKEN": "a-token", "GLOO_SOCKET_IFNAME": "lo"}
        env |= {"RAY_TMPDIR": str(folder / "ray"), "AUTOSCALER_METRIC_PORT": "0"}
        with (folder / f"{program}-{index}.log").open("ab") as output:
            return subprocess.Popen(command, env=env, stderr=output)

    def attempt(number: int) -> list[subprocess.Popen[bytes]]:
        """Start both pods of an attempt, each with an empty disk."""
        shutil.rmtree(state.root.parent, ignore_errors=True)
        state.root.parent.mkdir()
        log.write_text("")
        common = ["launch", "--stage", "sft", "--nodes", "2", "--subdomain", "pods", "--attempt", str(number)]
        common += ["--ray-port", str(port), "--head", ADDRESSES[0]]
        return [start(*common), start(*common, index=1)]

    def reads(label: str) -> list[list[float]]:
        """Return the MB that each host has read from the bucket, by read, the first host first."""
        text = (folder / "launch-0.log").read_text()
        lines = re.findall(rf" {label}: each host read from the bucket in [0-9.]+ s: ([0-9., ]+) MB\n", text)
        return [[float(size) for size in line.split(", ")] for line in lines]

    def restored(name: str) -> JobState:
        """Return a new folder with the newest state of the bucket."""
        copy = JobState(folder / name)
        copy.root.mkdir()
        fetch_newest(LocalFolder(folder / "bucket" / "pods"), copy)
        return copy

    (folder / "disk").mkdir()
    assert start("prepare").wait() == ExitCode.DONE
    head, worker = attempt(2)
    while (now := state.progress()) is None or now.step < 2:
        assert head.poll() is None and worker.poll() is None
        time.sleep(0.1)
    worker.send_signal(signal.SIGTERM)  # the node of one pod is drained
    assert head.wait() == ExitCode.SUSPENDED and worker.wait() == ExitCode.DONE
    suspended = Outcome.model_validate_json(log.read_text())
    assert suspended.checkpoint is not None and suspended.checkpoint.step >= 2
    assert verify(restored("suspended").root / suspended.checkpoint.path).ranks == 2  # with the files of both disks
    assert (state.root / suspended.checkpoint.path / HOST_OBJECTS).exists()  # the other pod has uploaded its own
    assert [size > 0 for size in reads("base")[0]] == [False, True]  # pod 0 has the model already
    assert not reads("step-[0-9]+")

    head, worker = attempt(3)
    assert head.wait() == ExitCode.DONE
    worker.terminate()
    assert worker.wait() == ExitCode.DONE
    outcome = Outcome.model_validate_json(log.read_text())
    assert outcome.outcome == "completed" and outcome.checkpoint is not None
    assert outcome.checkpoint.step > suspended.checkpoint.step
    (sizes,) = reads(Path(suspended.checkpoint.path).name)
    assert len(sizes) == 2 and all(sizes)  # files of one block, so each host reads both

    head, worker = attempt(1)
    assert head.wait() == ExitCode.RETRYABLE
    assert "StaleAttempt" in log.read_text() and "attempt 3 of stage sft has started" in log.read_text()
    worker.terminate()
    assert worker.wait() == ExitCode.DONE
    copy = restored("copy")
    assert copy.stage("sft").outcome() == outcome
    assert list(copy.stage("sft").model.glob("*.safetensors"))
