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


class JournalEntry(NamedTuple):
    """One line of the journal."""

    event: Event | None
    """None: a torn line, to be skipped."""
    start: int
    """Byte offset of its first byte: what `read_at` takes."""
    end: int
    """Byte offset behind it: where to read on."""


class Journal:
    """Appends events. Several processes may hold one journal: each line is a single append to the file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, event: Mapping[str, Any]) -> int:
        """Hand one event to the operating system: no death of this process can take it back. Returns its offset.

        Not synced to disk, which would cost more than a step of a small model: a crash of the machine may lose the
        last seconds. Raises OSError when the disk is full; the journal stays readable.
        """
        line = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        opening = b"\n" if self._torn() else b""
        written = os.write(self._file, opening + line)
        if written != len(opening + line):
            raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes of an entry could be written")
        return os.lseek(self._file, 0, os.SEEK_CUR) - len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _torn(self) -> bool:
        """Whether a writer died in the middle of the last line."""
        size = os.fstat(self._file).st_size
        return size > 0 and os.pread(self._file, 1, size - 1) != b"\n"


def read(path: Path, offset: int = 0) -> Iterator[JournalEntry]:
    """Entries from byte `offset` on, in order. An unfinished last line is not yielded: it may still grow."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        rest = b""
        while chunk := file.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                start, offset = offset, offset + len(line) + 1
                if line:
                    yield JournalEntry(_decode(line), start, offset)


def read_at(path: Path, start: int) -> Event:
    """The event that `Journal.append` or `read` found at byte `start`. Raises ValueError when there is none."""
    with path.open("rb") as file:
        file.seek(start)
        event = _decode(file.readline())
    if event is None:
        raise ValueError(f"{path}: no event at byte {start}")
    return event


def _decode(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:  # a line torn by kill -9 and closed by the next writer
        return None
    return event if isinstance(event, dict) else None
