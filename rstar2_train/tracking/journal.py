"""The tracking journal: all events of a job, one JSON object per line.

Writers append events and never wait for a server. The shipper reads from its own offset. A process that is killed
during a write leaves at most one torn line, which readers skip. `evaluation/sample_cache.py` has the same file format.
Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]
_CHUNK = 1 << 20


class JournalEntry(NamedTuple):
    """One line of the journal."""

    event: Event | None
    """None: a torn line, which the reader skips."""
    end: int
    """Offset after the line, at which reading continues."""


class Journal:
    """Appends events. Several processes may write to one journal, because each line is a single append."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, event: Mapping[str, Any]) -> None:
        """Append one event, which survives the death of this process.

        The file is not synced to disk, which would take longer than a step of a small model. A machine crash may lose
        the last seconds. Raises OSError when the disk is full; the journal stays readable.
        """
        line = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        opening = b"\n" if self._torn() else b""
        written = os.write(self._file, opening + line)
        if written != len(opening + line):
            raise OSError(errno.ENOSPC, f"wrote only {written} of {len(line)} bytes of a journal entry")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _torn(self) -> bool:
        """Return whether the last line is incomplete because its writer died."""
        size = os.fstat(self._file).st_size
        return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"


def read_entries(path: Path, offset: int = 0) -> Iterator[JournalEntry]:
    """Yield the entries from byte `offset`, in order. An incomplete last line is omitted, because it may still grow."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        rest = b""
        while chunk := file.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                offset += len(line) + 1
                if line:
                    yield JournalEntry(_decode(line), offset)


def _decode(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:  # a line that was torn by kill -9 and closed by the next writer
        return None
    return event if isinstance(event, dict) else None
