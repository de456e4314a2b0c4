"""A real MLflow: an empty database made once, and servers that a test may start late, kill and start again."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables with nothing in them: making them takes seconds, copying them none."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    program = "import sys; from mlflow.tracking import MlflowClient; MlflowClient(sys.argv[1]).search_experiments()"
    subprocess.run([sys.executable, "-c", program, f"sqlite:///{path}"], check=True, capture_output=True)
    return path


class Server:
    """An MLflow server on a port of its own choice, which it keeps over restarts."""

    def __init__(self, folder: Path, database: Path) -> None:
        self._folder = folder
        self.database = f"sqlite:///{folder / 'server.db'}"
        shutil.copy(database, folder / "server.db")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)),
                    *("--workers", "1", "--backend-store-uri", self.database),
                    *("--artifacts-destination", str(self._folder / "artifacts")),
                ],
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not self._healthy():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            time.sleep(0.2)

    def kill(self) -> None:
        """kill -9, with its workers."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture
def server(tmp_path: Path, empty_database: Path) -> Iterator[Server]:
    one = Server(tmp_path, empty_database)
    yield one
    one.kill()


@pytest.fixture
def state(tmp_path: Path, empty_database: Path) -> Path:
    """A job's state folder, with the tables of its own sqlite file ready."""
    folder = tmp_path / "state"
    folder.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    return folder


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for something to become true; pytest's own limits end a wait that is in vain."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, "did not come true in 300 s"
            time.sleep(0.1)

    return wait
