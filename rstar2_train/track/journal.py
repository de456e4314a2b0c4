"""The tracking journal: every event of a job, one JSON object a line, appended before anything is sent anywhere.

First half of tracking: writers append (never wait for a server), the shipper reads from its own offset. A process
killed while it writes leaves at most one torn line, which no reader takes for an event. Standard library only.
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


class Entry(NamedTuple):
    """One line of the journal."""

    event: Event | None
    """None: a torn line, to be skipped."""
    end: int
    """Byte offset behind it: where to read on."""


class Journal:
    """Appends events. Several processes may hold one journal: each line is a single append to the file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, event: Mapping[str, Any]) -> None:
        """Hand one event to the operating system: no death of this process can take it back.

        Not synced to disk, which would cost more than a step of a small model: a crash of the machine may lose the
        last seconds. Raises OSError when the disk is full; the journal stays readable.
        """
        line = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        if self._torn():
            line = b"\n" + line
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes of an entry could be written")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _torn(self) -> bool:
        """Whether a writer died in the middle of the last line."""
        size = os.fstat(self._file).st_size
        return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"


def read(path: Path, offset: int = 0) -> Iterator[Entry]:
    """Entries from byte `offset` on, in order. An unfinished last line is not yielded: it may still grow."""
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
                    yield Entry(_decode(line), offset)


def _decode(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:  # a line torn by kill -9 and closed by the next writer
        return None
    return event if isinstance(event, dict) else None
