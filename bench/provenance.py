"""Where a result comes from: the commit and the machine that a benchmark measured."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_PATHS = {"--state", "--before"}


def describe_commit() -> str:
    """Return the short id of the commit that is measured."""
    return subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()


def describe_command(module: str) -> str:
    """Return the command of this process, without options that are paths of one machine."""
    arguments = [
        argument
        for before, argument in itertools.pairwise(sys.argv)
        if not {before, argument.partition("=")[0]} & _PATHS
    ]
    return " ".join([*(["QUICK=1"] if os.environ.get("QUICK") else []), f"python -m {module}", *arguments])


def describe_machine() -> dict[str, Any]:
    """Return the cores and the processor of this machine."""
    return {"cores": len(os.sched_getaffinity(0)), "processor": platform.machine()}


class Load:
    """The load of the machine around a measurement: processes that other work adds are in it too."""

    def __init__(self) -> None:
        self._before = os.getloadavg()[1]

    def describe(self) -> dict[str, float]:
        """Return the means of five minutes before and at the end."""
        return {"before": round(self._before, 1), "after": round(os.getloadavg()[1], 1)}
