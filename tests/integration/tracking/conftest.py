"""A real MLflow: an empty database, created once, and servers that a test may start late, kill and restart."""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rstar2_train.utils.ports import free_ports


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's empty tables. Creating them takes seconds, so tests copy this file."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    program = "import sys; from mlflow.tracking import MlflowClient; MlflowClient(sys.argv[1]).search_experiments()"
    subprocess.run([sys.executable, "-c", program, f"sqlite:///{path}"], check=True, capture_output=True)
    return path


class Server:
    """An MLflow server on a free port that stays the same after a restart."""

    def __init__(self, folder: Path, database: Path) -> None:
        self._folder = folder
        self.database = f"sqlite:///{folder / 'server.db'}"
        shutil.copy(database, folder / "server.db")
        (self._port,) = free_ports(1)
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
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False


@pytest.fixture
def server(tmp_path: Path, empty_database: Path) -> Iterator[Server]:
    mlflow_server = Server(tmp_path, empty_database)
    yield mlflow_server
    mlflow_server.kill()


@pytest.fixture
def state(tmp_path: Path, empty_database: Path) -> Path:
    """State directory of a job, with MLflow's tables in its SQLite file."""
    folder = tmp_path / "state"
    folder.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    return folder


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition is true, and fail after a timeout."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, "the condition is not true after 300 s"
            time.sleep(0.1)

    return wait
