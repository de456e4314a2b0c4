"""Reports of servers whose event loop was held (rstar2_train/utils/loop_watch.py): failures of the running test."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path


@cache
def loop_watch_file() -> Path:
    """Return the file to which the servers of this test process report."""
    return Path(tempfile.gettempdir(), f"rstar2-loop-watch-{os.getpid()}.jsonl")


def take_reports() -> str:
    """Return the reports since the last call, and delete them."""
    file = loop_watch_file()
    if not file.exists():
        return ""
    reports = file.read_text(encoding="utf-8")
    file.unlink()
    return reports.replace("\\n", "\n")
