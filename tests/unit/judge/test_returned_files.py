"""The stream of returned files: complete files are read, and a hostile stream ends early."""

from __future__ import annotations

import pytest

from rstar2_train.judge.executor import program
from rstar2_train.judge.returned_files import FILE_HEADS, MAX_FILES, read_files, stream_bytes
from rstar2_train.judge.types import ReturnedFile

PLOT = ReturnedFile("plot.png", 3, "AAEC")


def test_read_files_returns_content_and_sizes() -> None:
    """A file above the limit has its size, but no content."""
    stream = b"3 1 plot.png\n\x00\x01\x02" + b"9999 0 big data.csv\n" + b"0 1 empty\n"
    assert read_files(stream) == [PLOT, ReturnedFile("big data.csv", 9999, None), ReturnedFile("empty", 0, "")]


@pytest.mark.parametrize(
    "rest",
    [
        b"5 1 a\nabc",
        b"1 1 ../x\na",
        b"1 1 ..\na",
        b"1 1 a\x1b[2J\na",
        b"1 1 plot.png\na",
        b"x",
        b"1 2 a\na",
        b"-1 1 a\n",
    ],
)
def test_read_files_stops_at_a_violation(rest: bytes) -> None:
    """A snippet can write anything: a truncated content, a path, control characters, and a second file of one name."""
    assert read_files(b"3 1 plot.png\n\x00\x01\x02" + rest) == [PLOT]


def test_read_files_count_is_limited() -> None:
    """The trusted side has its own limit."""
    assert len(read_files(b"".join(b"0 1 f%d\n" % number for number in range(100)))) == MAX_FILES


def test_stream_limit_equals_that_of_the_executor() -> None:
    """Both sides reserve the same bytes for the lines of the files."""
    assert (program.FILE_HEADS, program.MAX_FILES) == (FILE_HEADS, MAX_FILES)
    assert (stream_bytes(0), stream_bytes(1)) == (0, 1 + FILE_HEADS)
