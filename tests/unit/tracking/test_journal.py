"""The journal: what was written comes back, whatever died in the middle of a line."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2_train.tracking import journal
from rstar2_train.tracking.journal import Journal, read, read_at

events = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=3), max_size=8)


@settings(max_examples=50, deadline=None)
@given(events, st.integers(0, 200))
def test_any_cut_loses_only_what_was_not_whole(tmp_path_factory, written: list[dict], cut: int) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    writer = Journal(path)
    ends = []
    for event in written:
        writer.append(event)
        ends.append(path.stat().st_size)
    writer.close()
    cut = min(cut, path.stat().st_size)
    os.truncate(path, cut)
    whole = [event for event, end in zip(written, ends, strict=True) if end <= cut]
    assert [entry.event for entry in read(path)] == whole
    # The next writer closes the torn line, and the reader passes over it; a line that lacked no more than its end
    # is whole then.
    whole = [event for event, end in zip(written, ends, strict=True) if end - 1 <= cut]
    writer = Journal(path)
    writer.append({"after": 1})
    writer.close()
    entries = list(read(path))
    assert [entry.event for entry in entries if entry.event is not None] == [*whole, {"after": 1}]
    assert entries[-1].end == path.stat().st_size


def test_reading_goes_on_at_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = Journal(path)
    for number in range(5):
        writer.append({"n": number})
    ends = [entry.end for entry in read(path)]
    assert [entry.event for entry in read(path, ends[2])] == [{"n": 3}, {"n": 4}]
    assert list(read(path, ends[-1])) == []
    starts = [entry.start for entry in read(path, ends[2])]
    assert [read_at(path, start) for start in starts] == [{"n": 3}, {"n": 4}]
    with pytest.raises(ValueError, match="no event at byte 3"):
        read_at(path, 3)
    assert list(read(tmp_path / "none")) == []


def test_an_event_is_found_where_append_said(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first, second = Journal(path), Journal(path)
    starts = [first.append({"n": 1}), second.append({"n": 2})]
    with path.open("ab") as torn:
        torn.write(b'{"n": ')
    starts.append(first.append({"n": 3}))
    assert [read_at(path, start) for start in starts] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_lines_longer_than_a_read_come_back_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_CHUNK", 7)
    writer = Journal(tmp_path / "journal.jsonl")
    long = [{"text": "x" * 50}, {"text": "é\n\u2028"}]
    for event in long:
        writer.append(event)
    assert [entry.event for entry in read(tmp_path / "journal.jsonl")] == long


def test_a_full_disk_is_an_error_and_the_journal_stays_readable(tmp_path: Path) -> None:
    """The limit on file size stands for the full disk: writes come back short, then fail."""
    path = tmp_path / "journal.jsonl"
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from rstar2_train.tracking.journal import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "journal.append({'n': 1})\n"
        "try:\n"
        "    journal.append({'text': 'x' * 200})\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert int(ran.stdout) == errno.ENOSPC
    assert [entry.event for entry in read(path)] == [{"n": 1}]


def test_kill_9_in_the_middle_of_writing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rstar2_train.tracking.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(10**9):\n"
        "    journal.append({'n': number})\n"
        "    print(number, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for told in process.stdout:
        if int(told) >= 20:
            process.send_signal(signal.SIGKILL)
            break
    told_last = int([told, *process.stdout][-1])
    process.wait()
    numbers = [entry.event["n"] for entry in read(path) if entry.event is not None]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > told_last
