"""The journal: all complete events are read back, even if a writer died within a line."""

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
from rstar2_train.tracking.journal import Journal, read_entries

events = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=3), max_size=8)


@settings(max_examples=50, deadline=None)
@given(events, st.integers(0, 200))
def test_journal_cut_anywhere_loses_only_last_event(tmp_path_factory, written: list[dict], cut: int) -> None:
    """A cut at any byte loses only the incomplete event, and later writes are readable."""
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    writer = Journal(path)
    ends = []
    for event in written:
        writer.append(event)
        ends.append(path.stat().st_size)
    writer.close()
    cut = min(cut, path.stat().st_size)
    os.truncate(path, cut)
    complete = [event for event, end in zip(written, ends, strict=True) if end <= cut]
    assert [entry.event for entry in read_entries(path)] == complete
    # The next writer closes the torn line, and the reader skips it. A line that lacked only its end is then complete.
    complete = [event for event, end in zip(written, ends, strict=True) if end - 1 <= cut]
    writer = Journal(path)
    writer.append({"after": 1})
    writer.close()
    entries = list(read_entries(path))
    assert [entry.event for entry in entries if entry.event is not None] == [*complete, {"after": 1}]
    assert entries[-1].end == path.stat().st_size


def test_read_entries_from_offset_continues(tmp_path: Path) -> None:
    """Reading continues at the offset of an entry."""
    path = tmp_path / "journal.jsonl"
    writer = Journal(path)
    for number in range(5):
        writer.append({"n": number})
    ends = [entry.end for entry in read_entries(path)]
    assert [entry.event for entry in read_entries(path, ends[2])] == [{"n": 3}, {"n": 4}]
    assert list(read_entries(path, ends[-1])) == []
    assert list(read_entries(tmp_path / "none")) == []


def test_append_of_several_writers_after_a_torn_line(tmp_path: Path) -> None:
    """All complete events are read, those of another writer and those after a torn line too."""
    path = tmp_path / "journal.jsonl"
    first, second = Journal(path), Journal(path)
    first.append({"n": 1})
    second.append({"n": 2})
    with path.open("ab") as torn:
        torn.write(b'{"n": ')
    first.append({"n": 3})
    assert [entry.event for entry in read_entries(path)] == [{"n": 1}, {"n": 2}, None, {"n": 3}]


def test_read_entries_longer_than_chunk_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are longer than a chunk are complete."""
    monkeypatch.setattr(journal, "_CHUNK", 7)
    writer = Journal(tmp_path / "journal.jsonl")
    long = [{"text": "x" * 50}, {"text": "é\n\u2028"}]
    for event in long:
        writer.append(event)
    assert [entry.event for entry in read_entries(tmp_path / "journal.jsonl")] == long


def test_append_on_full_disk_raises_and_stays_readable(tmp_path: Path) -> None:
    """A limit on the file size simulates the full disk: writes are short, then fail."""
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
    completed = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert int(completed.stdout) == errno.ENOSPC
    assert [entry.event for entry in read_entries(path)] == [{"n": 1}]


def test_append_survives_kill_9_of_writer(tmp_path: Path) -> None:
    """Every event whose `append` returned survives the death of the writer."""
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
    for line in process.stdout:
        if int(line) >= 20:
            process.send_signal(signal.SIGKILL)
            break
    last_printed = int([line, *process.stdout][-1])
    process.wait()
    numbers = [entry.event["n"] for entry in read_entries(path) if entry.event is not None]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > last_printed
