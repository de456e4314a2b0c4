"""`rstar2 serve` as a person starts it, with all its real parts, once for the module."""

import json
import os
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
PATIENCE = 3


@dataclass
class Server:
    """A running server."""

    url: str
    model: str
    process: psutil.Process
    folder: Path
    """The model's."""

    def child(self, *words: str) -> psutil.Process:
        """The child whose command line holds all of these words."""
        (found,) = [one for one in self.process.children() if set(words) <= set(one.cmdline())]
        return found

    @property
    def engine_url(self) -> str:
        """Where its engine listens, on loopback and with a token of its own."""
        argv = self.child("vllm.entrypoints.openai.api_server").cmdline()
        return f"http://127.0.0.1:{argv[argv.index('--port') + 1]}"


@pytest.fixture(scope="module")
def server(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A served job, whose model knows one conversation by heart. The few harmless calls run without a sandbox."""
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
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True, env=os.environ)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        ready = json.loads(line)
        yield Server(ready["url"], ready["model"], psutil.Process(process.pid), job / "stages" / "rl" / "model")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not alive, "the server left children behind"
    finally:
        process.kill()
        process.wait()
