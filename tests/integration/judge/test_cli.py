"""`rstar2 judge serve|run|bench`, as a user runs them."""

import asyncio
import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.cli.main import main
from rstar2_train.judge.client.client import JudgeClient
from tests.integration.judge.conftest import require_sandbox
from tests.support.full_disk import small_disk
from tests.support.waiting import until

RSTAR2 = [sys.executable, "-m", "rstar2_train.cli", "judge"]


@contextmanager
def judge_serve(*options: str, errors: Path | None = None, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `rstar2 judge serve` with one sandbox; yield its process and URL. `errors`: file of its stderr."""
    require_sandbox()
    command = [*RSTAR2, "serve", "--executors", "1", *options]
    with errors.open("a") if errors else contextlib.nullcontext() as stderr, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=os.environ | env, start_new_session=True
    ) as serve:  # fmt: skip
        try:
            assert serve.stdout is not None
            yield serve, serve.stdout.readline().split("listens on ")[1].split()[0]
        finally:
            if serve.poll() is None:
                serve.send_signal(signal.SIGINT)


def test_serve_requires_the_token_and_stops_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options have an effect, `run` and `bench` use the judge, and Ctrl-C lets a running call finish."""
    monkeypatch.setenv("RSTAR2_JUDGE_TOKEN", "t0ken")
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the command extends it

    def rstar2_judge(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """Run a command in this process; return its exit code, output and errors."""
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = main(["judge", *arguments, "--url", url])
        return code, *capsys.readouterr()

    with judge_serve("--host", "0.0.0.0", "--max-pending", "8", "--session-idle", "1") as (serve, url):
        assert httpx.post(f"{url}/v1/run", json={"code": "1"}, trust_env=False, timeout=60).status_code == 401
        program = tmp_path / "program.py"
        program.write_text("print(int(input()) * 7)")
        stdin = tmp_path / "stdin"
        stdin.write_text("6\n")
        assert rstar2_judge("run", str(program), "--stdin", str(stdin)) == (0, "42\n", "")
        for code, seconds, message in (
            ("1 / 0", "60", "ZeroDivisionError"),
            ("while True: pass", "1", "timeout after 1.0"),
        ):
            status, _, errors = rstar2_judge("run", "-", "--seconds", seconds, stdin=code)
            assert status == 1 and message in errors
        status, table, _ = rstar2_judge("bench", "--snippet", "print", "--callers", "4", "--calls", "20")
        assert status == 0 and "calls/s" in table
        with httpx.Client(
            base_url=url, headers={"Authorization": "Bearer t0ken"}, trust_env=False, timeout=60
        ) as http, ThreadPoolExecutor() as pool:  # fmt: skip
            assert "at most 8" in http.post("/v1/batch", json={"calls": [{"code": "1"}] * 9}).text
            session = http.post("/v1/sessions").json()["session"]
            cell = f"/v1/sessions/{session}/cells"
            assert http.post(cell, json={"code": "1"}).json()["session_lives"]
            # Each cell restarts the idle time, so a pause that the worker needs longer than is followed by another one.
            until(lambda: http.post(cell, json={"code": "1"}).json()["status"] == "session_lost", "idle", every=2)
            call = {"code": "import time\ntime.sleep(4)\nprint(9)", "limits": {"wallSeconds": 60}}
            last = [pool.submit(http.post, "/v1/run", json=call)]

            def runs() -> bool:
                if last[-1].done():  # before a report of the worker
                    last.append(pool.submit(http.post, "/v1/run", json=call))
                return bool(http.get("/v1/status").json()["executors"]["busy"]) and not last[-1].done()

            until(runs, "a call runs")
            os.killpg(serve.pid, signal.SIGINT)
            assert last[-1].result().json()["stdout"] == "9\n"
        assert serve.wait(120) == 0


PARTS = {"worker": "worker", "sandbox": "boot", "redis": "redis-server", "api": "api"}
"""A word in the command line of each part."""


def find_part(serve: psutil.Process, name: str) -> psutil.Process:
    """Return the process of a part, when it runs."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for process in serve.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if PARTS[name] in " ".join(process.cmdline()).split() or PARTS[name] in process.name():
                    return process
        time.sleep(0.05)
    raise AssertionError(f"no {name} runs")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[psutil.Process, str]]:
    """A judge for the tests that kill its parts."""
    with judge_serve() as (serve, url):
        yield psutil.Process(serve.pid), url


def test_serve_worker_killed_with_calls_in_flight(served: tuple[psutil.Process, str]) -> None:
    """All 128 calls in flight return right although the only worker is killed."""
    serve, url = served

    async def square(client: JudgeClient, n: int) -> str:
        result = await client.run(
            f"import time\ntime.sleep(0.02)\nprint({n} * {n})", limits=JudgeLimits(wall_seconds=60)
        )
        return result.stdout

    async def calls() -> list[str]:
        async with JudgeClient(url) as client:
            running = [asyncio.create_task(square(client, n)) for n in range(128)]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            find_part(serve, "worker").kill()
            return await asyncio.gather(*running)

    assert asyncio.run(calls()) == [f"{n * n}\n" for n in range(128)]


@pytest.mark.parametrize("part", PARTS)
def test_serve_restarts_a_killed_part(served: tuple[psutil.Process, str], part: str) -> None:
    """A later call is answered, by a new process."""
    serve, url = served
    killed = find_part(serve, part)
    killed.kill()
    run = [*RSTAR2, "run", "-", "--url", url]
    deadline = time.monotonic() + 300
    while True:
        done = subprocess.run(run, input="print(6 * 7)", capture_output=True, text=True, check=False)
        if done.returncode == 0 or time.monotonic() > deadline:
            break
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert find_part(serve, part).pid != killed.pid


def test_serve_port_in_use_fails_before_any_start(served: tuple[psutil.Process, str], tmp_path: Path) -> None:
    """Another judge on the port would answer the readiness probes, while the own API restarts again and again."""
    port = served[1].rpartition(":")[2]
    command = [*RSTAR2, "serve", "--executors", "1", "--port", port]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (1, "", [])
    assert f":{port}: Address already in use. Stop the process" in done.stderr and "--port" in done.stderr


def test_serve_full_disk_names_the_folder(tmp_path: Path) -> None:
    """Without space it starts nothing; if the disk fills up later, it prints that, and calls continue afterwards."""
    with small_disk(tmp_path / "disk", mebibytes=96) as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(40 << 20))
        command = [*RSTAR2, "serve", "--executors", "1"]
        environment = os.environ | {"TMPDIR": str(disk)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
        assert (done.returncode, done.stdout, list(disk.iterdir())) == (1, "", [filler])
        assert f"MiB are free under {disk}" in done.stderr and "TMPDIR" in done.stderr
        filler.unlink()
        errors = tmp_path / "errors"
        with judge_serve(errors=errors, TMPDIR=str(disk)) as (_, url):
            filler.write_bytes(bytes(shutil.disk_usage(disk).free))
            until(lambda: f"only 0 MiB are free under {disk}" in errors.read_text(), "the full disk is printed")
            filler.unlink()
            until(lambda: "has space again; calls continue" in errors.read_text(), "the free disk is printed")
            done = subprocess.run([*RSTAR2, "run", "-", "--url", url], input="1", capture_output=True, text=True)
            assert done.stdout == "1\n", done.stderr


def test_run_stops_its_judge_after_sigterm() -> None:
    """`rstar2 judge run` exits with the code of the signal, and leaves no process behind."""
    require_sandbox()
    with subprocess.Popen([*RSTAR2, "run", "-", "--seconds", "60"], stdin=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        run.stdin.write("import time\ntime.sleep(60)")
        run.stdin.close()
        process = psutil.Process(run.pid)
        until(lambda: len(process.children()) >= 4, "all parts of the judge, and the guard, have started")
        children = process.children(recursive=True)
        run.terminate()
        assert run.wait(120) == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs(children, timeout=120)
        assert not alive
