"""Runs kubectl for `kubectl rstar2`, with the user's context and rights."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rstar2_train.utils.text import printable, reason

KIND = "agenticrljobs.rstar2.dev"
JOB_LABEL = "rstar2.dev/job"
SHOWN_CHARACTERS = 80
WRAPPER = "Check the kubectl on the PATH: a wrapper may print to its standard output, or a proxy may answer."
_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
"""Options of a process: kubectl prints UTF-8 in every locale."""


class KubectlFailed(Exception):
    """kubectl is missing, or exited with an error, which is the message."""


class Kubectl:
    """kubectl with the options that select cluster and namespace."""

    def __init__(self, options: Sequence[str]) -> None:
        self._options = list(options)

    def text(self, *arguments: str, stdin: str = "") -> str:
        """Return what kubectl prints. Raises KubectlFailed."""
        with _named():
            done = subprocess.run(self._command(arguments), input=stdin, capture_output=True, check=False, **_TEXT)
        if done.returncode:
            raise KubectlFailed(done.stderr.strip() or f"kubectl exited with code {done.returncode}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """Return an object, or a list of objects. Raises KubectlFailed."""
        text = self.text("get", *arguments, "-o", "json")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            first = next(iter(text.splitlines()), "")[:SHOWN_CHARACTERS]
            raise KubectlFailed(f"kubectl get printed no JSON object: {printable(first)!r}. {WRAPPER}")
        return answer.get("items", answer)

    def in_terminal(self, *arguments: str) -> int:
        """Run kubectl in this terminal until it exits. Return its exit code. Raises KubectlFailed."""
        with _named():
            return subprocess.run(self._command(arguments), check=False).returncode

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start kubectl; the caller reads its standard output and ends it. Raises KubectlFailed."""
        with _named():
            return subprocess.Popen(self._command(arguments), stdout=subprocess.PIPE, **_TEXT)

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return ["kubectl", *arguments, *self._options]


@contextmanager
def _named() -> Iterator[None]:
    """Raise KubectlFailed if kubectl cannot be started."""
    try:
        yield
    except FileNotFoundError as error:
        raise KubectlFailed("kubectl is not on the PATH. Install it, or add its folder to PATH.") from error
    except OSError as error:  # such as a program of another processor
        raise KubectlFailed(f"kubectl cannot be run: {reason(error)}. Check the kubectl on the PATH.") from error
