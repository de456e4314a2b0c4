"""The commands `rstar2 judge serve|run|bench`."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.integration.judge.conftest import require_sandbox

RSTAR2 = [sys.executable, "-m", "rstar2_train.cli", "judge"]


def test_judge_commands_share_the_token(tmp_path: Path) -> None:
    require_sandbox()
    environment = os.environ | {"RSTAR2_JUDGE_TOKEN": "t0ken"}
    command = [*RSTAR2, "serve", "--executors", "1", "--host", "0.0.0.0", "--max-pending", "8", "--session-idle", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as serving:
        try:
            assert serving.stdout is not None
            url = serving.stdout.readline().split("listens on ")[1].split()[0]
            assert httpx.post(f"{url}/v1/run", json={"code": "1"}, trust_env=False).status_code == 401
            program = tmp_path / "program.py"
            program.write_text("print(int(input()) * 7)")
            stdin = tmp_path / "stdin"
            stdin.write_text("6\n")
            run = [*RSTAR2, "run", str(program), "--stdin", str(stdin), "--url", url]
            done = subprocess.run(run, capture_output=True, text=True, env=environment, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
            failing = [*RSTAR2, "run", "-", "--seconds", "1", "--url", url]
            for code, message in (("1 / 0", "ZeroDivisionError"), ("while True: pass", "timeout after 1.0")):
                done = subprocess.run(failing, input=code, capture_output=True, text=True, env=environment, check=False)
                assert done.returncode == 1 and message in done.stderr
            bench = [*RSTAR2, "bench", "--snippet", "print", "--callers", "4", "--calls", "20", "--url", url]
            done = subprocess.run(bench, capture_output=True, text=True, env=environment, check=False)
            assert done.returncode == 0 and "calls/s" in done.stdout
            with httpx.Client(
                base_url=url, headers={"Authorization": "Bearer t0ken"}, trust_env=False, timeout=60
            ) as http, ThreadPoolExecutor() as pool:  # fmt: skip
                assert "at most 8" in http.post("/v1/batch", json={"calls": [{"code": "1"}] * 9}).text
                session = http.post("/v1/sessions").json()["session"]
                cell = f"/v1/sessions/{session}/cells"
                assert http.post(cell, json={"code": "1"}).json()["session_lives"]
                time.sleep(4)
                assert http.post(cell, json={"code": "1"}).json()["status"] == "session_lost"
                code = "import time\ntime.sleep(3)\nprint(9)"
                last = pool.submit(http.post, "/v1/run", json={"code": code})
                time.sleep(1)
                os.killpg(serving.pid, signal.SIGINT)  # as Ctrl-C: calls in flight are still answered
                assert last.result().json()["stdout"] == "9\n"
            assert serving.wait(20) == 0
        finally:
            if serving.poll() is None:
                serving.send_signal(signal.SIGINT)


def test_judge_commands_report_errors_in_one_line() -> None:
    for arguments, code, message in (
        (["run", "no-such-file.py"], 1, "no-such-file.py"),
        (["run", "-", "--url", "http://127.0.0.1:9"], 1, "127.0.0.1:9"),
        (["serve", "--host", "0.0.0.0"], 1, "run code on it"),
        (["serve", "--port", "99999"], 2, "argument --port: '99999' is no port: 0 to 65535"),
        (["serve", "--executors", "-1"], 2, "argument --executors: '-1' is not a whole number of at least 1"),
        (["run", "-", "--seconds", "-1"], 2, "argument --seconds: -1: more than 0 seconds"),
        (["run", "-", "--seconds", "601"], 1, "--seconds 601.0: input should be less than or equal to 600"),
        (["run", "-", "--memory-mib", "1"], 1, "--memory-mib 1: input should be greater than or equal to 32"),
    ):
        environment = {name: value for name, value in os.environ.items() if name != "RSTAR2_JUDGE_TOKEN"}
        done = subprocess.run(
            [*RSTAR2, *arguments], input="1", capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr
