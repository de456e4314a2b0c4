"""Compares the texts that rStar2-Agent's own tool client gets from this judge with those from a real code-judge.

`python -m bench.judge_texts --rstar FOLDER --code-judge FOLDER` takes checkouts of microsoft/rStar and 0xWJ/code-judge,
which are not part of this project. It loads the client unchanged, runs the same tool calls on both judges, and writes
bench/results/judge_texts.json. Differences are expected only for the programs in DIFFERENCES.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil

from rstar2_train.utils.ports import LOOPBACK, free_ports
from tests.support.unsupervised_judge import UnsupervisedJudge

RESULTS = Path(__file__).parent / "results" / "judge_texts.json"
SECONDS = 10
"""Time limit of both judges: the default of code-judge."""
START_SECONDS = 60.0
JUPYTER, PYTHON = "jupyter_code", "python_code_with_standard_io"

Program = tuple[str, str, tuple[str, ...], str]
"""Name of the tool, code, earlier cells, standard input."""
PROGRAMS: dict[str, Program] = {
    "print": (JUPYTER, "print(6 * 7)", (), ""),
    "last expression": (JUPYTER, "x = 20\nx + 22", (), ""),
    "no output": (JUPYTER, "x = 1", (), ""),
    "earlier cells": (JUPYTER, "x + 1", ("x = 41\nprint('hidden')",), ""),
    "failed earlier cell": (JUPYTER, "print(x)", ("x = 1", "1 / 0"), ""),
    "sympy": (JUPYTER, "from sympy import *\nt = symbols('t')\nfactor(t**2 - 4)", (), ""),
    "numpy": (JUPYTER, "import numpy as np\nnp.linalg.det(np.eye(3) * 2)", (), ""),
    "standard input": (PYTHON, "print(int(input()) + int(input()))", (), "20\n22\n"),
    "no standard input": (PYTHON, "input()", (), ""),
    "exception": (JUPYTER, "print('before')\n1 / 0", (), ""),
    "name error": (JUPYTER, "print(undefined)", (), ""),
    "syntax error": (JUPYTER, "x = (", (), ""),
    "exception in a function": (JUPYTER, "def f(n):\n    return n / 0\n\nf(3)", (), ""),
    "output on stderr": (JUPYTER, "import sys\nprint('out')\nprint('err', file=sys.stderr)", (), ""),
    "exit status": (JUPYTER, "import os\nos._exit(3)", (), ""),
    "sys.exit": (JUPYTER, "import sys\nprint('a')\nsys.exit(1)", (), ""),
    "long output": (JUPYTER, "print('x' * 5000)", (), ""),
    "output above the kept size": (JUPYTER, "print('x' * 3_000_000)", (), ""),
    "endless loop": (JUPYTER, "print('started')\nwhile True:\n    pass", (), ""),
    "sleep": (JUPYTER, "import time\ntime.sleep(60)", (), ""),
    "memory": (JUPYTER, "x = bytearray(10 << 30)", (), ""),
    "recursion": (JUPYTER, "def f(n):\n    return f(n + 1)\n\nf(0)", (), ""),
    "unicode": (JUPYTER, "print('\\u00e9\\u4e2d')", (), ""),
    "signal": (JUPYTER, "import os\nos.kill(os.getpid(), 9)", (), ""),
    "missing package": (JUPYTER, "import no_such_package", (), ""),
    "stopped timer": (JUPYTER, "import signal\nsignal.alarm(0)\nwhile True:\n    pass", (), ""),
    "mark of code-judge": (JUPYTER, "print('@@E')\nprint('@@D-5.0')", (), ""),
    "not UTF-8": (JUPYTER, "import sys\nsys.stdout.buffer.write(b'\\xff')\nNone", (), ""),
}
DIFFERENCES = {
    "stopped timer": "code-judge does not stop the program: the client gets no result and sends it again, four times",
    "mark of code-judge": "code-judge cuts the output at its own mark, and a second one is an internal error",
    "not UTF-8": "code-judge has an internal error; here the byte is replaced",
}
"""Program -> why its texts may differ."""


def load_client(folder: Path) -> Any:
    """Return the module of rStar2-Agent's client, unchanged."""
    path = folder / "rstar2_agent" / "tools" / "code_judge_utils.py"
    spec = importlib.util.spec_from_file_location("rstar_client", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def code_judge(folder: Path) -> Iterator[int]:
    """Run a real code-judge, which has no sandbox; yield its port."""
    redis_port, port = free_ports(2)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment = inherited | {
        "REDIS_URI": f"redis://{LOOPBACK}:{redis_port}",
        "MAX_EXECUTION_TIME": str(SECONDS),
        "MAX_MEMORY": "512",
        "MAX_WORKERS": "2",
        "PYTHON_EXECUTOR_PATH": sys.executable,
    }
    server = shutil.which("redis-server") or "redis-server"
    redis = [server, "--port", str(redis_port), "--save", "", "--bind", LOOPBACK]
    api = [sys.executable, "-m", "uvicorn", "app.main:app", "--host", LOOPBACK, "--port", str(port)]
    processes = []
    with tempfile.TemporaryDirectory(prefix="rstar2-texts-") as state, Path(state, "log").open("wb") as log:
        try:
            for command, cwd in ((redis, Path(state)), (api, folder), ([sys.executable, "run_workers.py"], folder)):
                processes.append(
                    subprocess.Popen(command, cwd=cwd, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
            deadline = time.monotonic() + START_SECONDS
            while True:
                try:
                    status = httpx.get(f"http://{LOOPBACK}:{port}/status", trust_env=False)
                    if status.status_code == 200 and status.json()["num_workers"]:
                        break
                except httpx.HTTPError:
                    pass
                if time.monotonic() > deadline:
                    raise RuntimeError(f"code-judge did not start: {Path(state, 'log').read_text()[-2000:]}")
                time.sleep(0.2)
            yield port
        finally:
            for process in reversed(processes):
                with contextlib.suppress(psutil.NoSuchProcess):
                    for member in psutil.Process(process.pid).children(recursive=True):
                        member.kill()
                    process.kill()
                process.wait()


def normalize(text: str) -> str:
    """Return a text without the time."""
    return re.sub(r"execution time: .*", "execution time: T", text)


async def texts(client: Any, port: int) -> dict[str, str]:
    """Return program -> the text that the client gives to the model."""
    results = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        for name, (tool, code, history, stdin) in PROGRAMS.items():
            call: dict[str, Any] = {"name": tool, "arguments": {"code": code, "input": stdin}}
            call["history_tool_calls"] = [{"name": tool, "arguments": {"code": cell}} for cell in history]
            try:
                (text,) = await client.run_tool_calls_on_server_async(
                    [call],
                    session,
                    max_retries=1,
                    generate_tool_call_code=client.generate_tool_call_code,
                    generate_tool_call_input=client.generate_tool_call_input,
                    host_addr=LOOPBACK,
                    host_port=str(port),
                )
            except RuntimeError as error:
                text = f"no result: {error}"
            results[name] = normalize(text)
    return results


def main() -> None:
    """Compare the texts. Exits with 1 if an unexplained one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rstar", type=Path, required=True, help="checkout of microsoft/rStar")
    parser.add_argument("--code-judge", type=Path, required=True, help="checkout of 0xWJ/code-judge")
    arguments = parser.parse_args()
    client = load_client(arguments.rstar)
    with tempfile.TemporaryDirectory(prefix="rstar2-texts-") as folder:
        client.set_failed_submissions_path(folder)
        with UnsupervisedJudge(
            Path(folder, "judge"), executors=1, api_arguments=("--script-seconds", str(SECONDS))
        ) as judge:
            ours = asyncio.run(texts(client, judge.port))
        with code_judge(arguments.code_judge) as port:
            theirs = asyncio.run(texts(client, port))
    rows = {
        name: {"equal": ours[name] == theirs[name], "ours": ours[name], "theirs": theirs[name]} for name in PROGRAMS
    }
    for name, row in rows.items():
        if not row["equal"]:
            row["reason"] = DIFFERENCES.get(name, "")
    RESULTS.write_text(json.dumps({"command": "python -m bench.judge_texts", "programs": rows}, indent=1) + "\n")
    unexplained = [name for name, row in rows.items() if not row["equal"] and not row["reason"]]
    equal = sum(bool(row["equal"]) for row in rows.values())
    print(f"{equal} of {len(rows)} texts are equal. Unexplained: {unexplained}")
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
