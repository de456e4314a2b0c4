"""`rstar2 judge serve|run|bench`, as a person types them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.integration.judge.conftest import require_sandbox

RSTAR2 = [sys.executable, "-m", "rstar2_train.cli", "judge"]


def test_serve_asks_for_the_token_and_the_others_use_it(tmp_path: Path) -> None:
    require_sandbox()
    environment = os.environ | {"RSTAR2_JUDGE_TOKEN": "t0ken"}
    command = [*RSTAR2, "serve", "--executors", "1", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as serving:
        try:
            assert serving.stdout is not None
            url = serving.stdout.readline().split("listens on ")[1].split()[0]
            assert httpx.post(f"{url}/v1/run", json={"code": "1"}, trust_env=False).status_code == 401
            program = tmp_path / "program.py"
            program.write_text("print(int(input()) * 7)")
            given = tmp_path / "stdin"
            given.write_text("6\n")
            run = [*RSTAR2, "run", str(program), "--stdin", str(given), "--url", url]
            ran = subprocess.run(run, capture_output=True, text=True, env=environment, check=False)
            assert (ran.returncode, ran.stdout, ran.stderr) == (0, "42\n", "")
            failing = [*RSTAR2, "run", "-", "--seconds", "1", "--url", url]
            for code, said in (("1 / 0", "ZeroDivisionError"), ("while True: pass", "timeout after 1.0")):
                ran = subprocess.run(failing, input=code, capture_output=True, text=True, env=environment, check=False)
                assert ran.returncode == 1 and said in ran.stderr
            bench = [*RSTAR2, "bench", "--snippet", "print", "--callers", "4", "--calls", "20", "--url", url]
            ran = subprocess.run(bench, capture_output=True, text=True, env=environment, check=False)
            assert ran.returncode == 0 and "calls/s" in ran.stdout
        finally:
            serving.send_signal(signal.SIGINT)
        assert serving.wait(60) == 0


def test_mistakes_are_one_line() -> None:
    for arguments, said in (
        (["run", "no-such-file.py"], "no-such-file.py"),
        (["run", "-", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["serve", "--host", "0.0.0.0"], "run code on it"),
    ):
        environment = {name: value for name, value in os.environ.items() if name != "RSTAR2_JUDGE_TOKEN"}
        ran = subprocess.run(
            [*RSTAR2, *arguments], input="1", capture_output=True, text=True, env=environment, timeout=60, check=False
        )
        assert ran.returncode == 1 and said in ran.stderr and "Traceback" not in ran.stderr
