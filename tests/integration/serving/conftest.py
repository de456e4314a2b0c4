"""`rstar2 serve` with all its real parts, started once per module."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.engine import JOB
from tests.support.engine_fixtures import Models, models

__all__ = ["models"]

TOKEN = "a-token-of-this-test"
PATIENCE = 10
"""Seconds. No answer of a judge takes so long on a loaded machine."""


@dataclass
class Server:
    """A running server."""

    url: str
    model: str
    process: psutil.Process
    folder: Path
    """Folder of the model."""

    def child(self, *arguments: str) -> psutil.Process:
        """Return the child whose command line has all these arguments."""
        children = []
        for child in self.process.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                children += [child] if set(arguments) <= set(child.cmdline()) else []
        (child,) = children
        return child

    @property
    def engine_url(self) -> str:
        """URL of its engine, which listens on loopback and has its own token."""
        argv = self.child("vllm.entrypoints.openai.api_server").cmdline()
        return f"http://127.0.0.1:{argv[argv.index('--port') + 1]}"


@pytest.fixture(scope="module")
def server(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A served job, whose model has memorised one conversation. Its harmless calls run without a sandbox."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    folder = tmp_path_factory.mktemp("serve")
    job = folder / "test"
    shutil.copytree(models.memorising, job / "stages" / "rl" / "model")
    spec = JOB["spec"] | {"executor": {"replicas": 1, "isolation": "None"}}
    (job / "job.json").write_text(json.dumps(JOB | {"spec": spec}))
    (folder / "token").write_text(f"{TOKEN}\n")
    log = folder / "serve.log"
    argv = [sys.executable, "-m", "rstar2_train.cli", "serve", "test", "--state", str(folder), "--port", "0"]
    argv += ["--token-file", str(folder / "token"), "--judge-patience", str(PATIENCE)]
    with log.open("w") as stderr:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        ready = json.loads(line)
        yield Server(ready["url"], ready["model"], psutil.Process(process.pid), job / "stages" / "rl" / "model")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0, log.read_text()
        _, alive = psutil.wait_procs(family, timeout=120)
        assert not alive, "the server left children behind"
    finally:
        process.kill()
        process.wait()
