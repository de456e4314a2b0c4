"""The files that a call returns: what its process wrote into /tmp/out, as the worker reads them from the sandbox. Pure.

The executor's child (executor/program.py) sends, per file, a line `SIZE KEPT NAME` and the content if it is kept. The
snippet can write anything to that stream, so a stream that violates the form ends early, and a name is only a name.
"""

from __future__ import annotations

import base64
import re

from rstar2_train.judge.types import ReturnedFile

FILE_HEADS = 8192
"""Bytes of the stream for the lines of a call's files; the same number is in executor/program.py."""
MAX_FILES = 16
_HEAD = re.compile(rb"(\d{1,12}) ([01]) ([^\n/\x00]{1,400})\n")


def stream_bytes(limit: int) -> int:
    """Return the limit of the stream for contents of `limit` bytes; 0: no files."""
    return limit + FILE_HEADS if limit else 0


def read_files(stream: bytes) -> list[ReturnedFile]:
    """Return the files of a stream, in order, up to its first violation of the form."""
    files: list[ReturnedFile] = []
    position = 0
    while len(files) < MAX_FILES and (head := _HEAD.match(stream, position)):
        size, kept = int(head[1]), head[2] == b"1"
        end = head.end() + (size if kept else 0)
        name = head[3].decode("utf-8", "replace")
        if end > len(stream) or not name.isprintable() or name in (".", "..") or any(f.name == name for f in files):
            break
        content = base64.b64encode(stream[head.end() : end]).decode() if kept else None
        files.append(ReturnedFile(name, size, content))
        position = end
    return files
