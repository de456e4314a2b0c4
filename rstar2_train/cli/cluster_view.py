"""`kubectl rstar2 view`: `rstar2 view` in a pod that mounts a job's claim, and a forwarded port to it."""

from __future__ import annotations

import argparse
import re
import subprocess

from rstar2_train.cli.kubectl import Kubectl, KubectlFailed
from rstar2_train.cli.state_pod import ENDED, add_timeout_option, pod_states, problem, state_pod
from rstar2_train.cli.view import add_page_options

HELP = "follow a job in a browser on this machine: curves, newest trajectories"
PORT = 8265
"""Port of the page inside the pod."""
_PAGE = re.compile(r"open http://[^/]+(/\S+/)")
_FORWARDED = re.compile(r"^Forwarding from 127\.0\.0\.1:(\d+)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_page_options(parser)
    add_timeout_option(parser)


def view(kubectl: Kubectl, options: argparse.Namespace) -> int:
    """Run the command until Ctrl-C. Raises KubectlFailed."""
    arguments = ["view", options.job, "--port", str(PORT), "--limit", str(options.limit)]
    try:
        with state_pod(kubectl, options.job, arguments) as name:
            path = _until_ready(kubectl, name, seconds=options.timeout)
            return _forward(kubectl, name, path, options)
    except KeyboardInterrupt:
        return 0


def _until_ready(kubectl: Kubectl, name: str, *, seconds: int) -> str:
    """Wait for the page; return its path, with the token. Raises KubectlFailed."""
    for pod in pod_states(kubectl, name, seconds=seconds):
        output = kubectl.text("logs", name)
        if page := _PAGE.search(output):
            return page[1]
        if pod["status"]["phase"] in ENDED:
            raise KubectlFailed(f"pod {name} ended: {output.strip() or problem(pod)}")
    raise AssertionError("pod_states yields without end")


def _forward(kubectl: Kubectl, name: str, path: str, options: argparse.Namespace) -> int:
    """Forward a port until kubectl ends. Raises KubectlFailed."""
    local = str(options.port or "")
    forward = kubectl.start("port-forward", f"pod/{name}", f"{local}:{PORT}", "--address=127.0.0.1")
    assert forward.stdout is not None
    try:
        for line in forward.stdout:
            if port := _FORWARDED.match(line):
                url = f"http://127.0.0.1:{port[1]}{path}"
                print(f"{options.job}: open {url} (Ctrl-C ends it; the job is not affected)", flush=True)
        code = forward.wait()
    finally:
        if forward.poll() is None:
            forward.terminate()
            try:
                forward.wait(5)
            except subprocess.TimeoutExpired:
                forward.kill()
    raise KubectlFailed(f"kubectl port-forward ended with code {code}: the pod was deleted, or the connection was lost")
