"""Runs the programs of an agent in its pod: `python3 agent_runner.py HOST:PORT EPISODES COMMAND...`.

The operator mounts this file into the user's image, so it needs nothing but Python 3.8. Each of EPISODES threads asks
the trainer (`rollout/agent_program/pods.py`) for an episode, runs COMMAND for it, and reports how it exits. The
connection of the request stays open. Its end is the end of the episode, or the loss of one side.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

TOKEN = "RSTAR2_AGENT_TOKEN"
SILENCE_SECONDS = 60.0
"""Seconds without a byte of the trainer, which sends one at least every ten seconds."""
RETRY_SECONDS = 1.0
STDERR_BYTES = 2000
"""Last bytes of standard error that are reported."""
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


class RunningProgram:
    """A running program in a process group of its own."""

    def __init__(self, command: list[str], row: dict[str, Any], variables: dict[str, str]) -> None:
        self.stderr = bytearray()
        with tempfile.TemporaryFile() as stdin:
            stdin.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            stdin.seek(0)
            self.process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        self.reader = threading.Thread(target=self._keep_tail, daemon=True)
        self.reader.start()

    def _keep_tail(self) -> None:
        pipe: Any = self.process.stderr
        while True:
            data = pipe.read1(1 << 16)
            if not data:
                return
            self.stderr += data
            del self.stderr[:-STDERR_BYTES]

    def wait(self) -> tuple[int, str]:
        """Return the exit status and the end of standard error."""
        status = self.process.wait()
        self.reader.join(1.0)
        return status, bytes(self.stderr).decode(errors="replace")

    def kill(self) -> None:
        """Kill the process group, which may have children of a program that has exited."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def addresses(service: str) -> list[tuple[str, int]]:
    """Return host and port of each pod behind `service`; only one of them, the orchestrator's, listens."""
    host, _, port = service.rpartition(":")
    try:
        entries = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({(str(entry[4][0]), int(port)) for entry in entries})


def play(host: str, port: int, token: str, command: list[str]) -> bool:
    """Run one episode of the trainer at this address; return whether there was one.

    Raises OSError, HTTPException and ValueError (half a line) if the trainer is lost.
    """
    connection = http.client.HTTPConnection(host, port, timeout=SILENCE_SECONDS)
    program: RunningProgram | None = None
    try:
        connection.request("POST", "/v1/programs", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        if response.status != 200:
            raise http.client.HTTPException(f"status {response.status}")
        work = next_work(response)
        if work is None:
            return False
        name = f"[{host}]" if ":" in host else host
        variables = {"OPENAI_BASE_URL": f"http://{name}:{port}/v1", "OPENAI_API_KEY": work["key"]}
        try:
            program = RunningProgram(command, work["row"], variables)
        except OSError as error:
            report(host, port, work["key"], 127, f"cannot start the program: {error}")
            return True
        threading.Thread(target=watch, args=(program, host, port, work["key"]), daemon=True).start()
        while response.readline():
            pass
        return True
    finally:
        if program is not None:
            program.kill()
        connection.close()


def next_work(response: http.client.HTTPResponse) -> dict[str, Any] | None:
    """Return the episode of a request; None if the trainer ends the request without one."""
    while True:
        line = response.readline()
        if not line:
            return None
        if line.strip():
            work: dict[str, Any] = json.loads(line)
            return work


def watch(program: RunningProgram, host: str, port: int, key: str) -> None:
    """Report the exit of a program."""
    status, stderr = program.wait()
    report(host, port, key, status, stderr)


def report(host: str, port: int, key: str, status: int, stderr: str) -> None:
    """Send an exit to the trainer, which may have ended the episode before."""
    connection = http.client.HTTPConnection(host, port, timeout=SILENCE_SECONDS)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with contextlib.suppress(OSError, http.client.HTTPException):
        body = json.dumps({"status": status, "stderr": stderr})
        connection.request("POST", "/v1/programs/exit", body, headers)
        connection.getresponse().read()
    connection.close()


def play_forever(service: str, token: str, command: list[str]) -> None:
    """Run one episode after another."""
    while True:
        for host, port in addresses(service):
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                while play(host, port, token, command):
                    pass
        time.sleep(RETRY_SECONDS)


def reap() -> None:
    """Run the runner in a child, and reap the orphans of its programs: this is the first process of a container."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # of both: no program of this user can read the token in /proc
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        return
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def source() -> str:
    """Return this file's text, which the operator mounts."""
    return Path(__file__).read_text(encoding="utf-8")


def exit_on_error(error: threading.ExceptHookArgs) -> None:
    """Stop the pod, which the kubelet restarts: without one of its threads it would play fewer episodes."""
    threading.__excepthook__(error)
    os._exit(1)


def main() -> None:
    """Start the threads."""
    service, episodes, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    token = os.environ.pop(TOKEN)
    reap()
    threading.excepthook = exit_on_error
    threads = [threading.Thread(target=play_forever, args=(service, token, command)) for _ in range(episodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
