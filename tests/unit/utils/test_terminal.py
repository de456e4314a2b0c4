"""A program whose terminal goes away: it goes on, or ends in order."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2_train.utils.terminal import ending_signals

PROGRAM = """\
import pathlib, signal, sys, time
from rich.console import Console
from rstar2_train.utils.terminal import ending_signals, outlive_terminal
outlive_terminal()
hung_up = []
for number in ending_signals():
    signal.signal(number, lambda *_: hung_up.append(1))
print("begun", flush=True)
while not hung_up:
    time.sleep(0.01)
console = Console()
console.print("[red]nobody reads this")
print("nor this", file=sys.stderr, flush=True)
pathlib.Path(sys.argv[1]).write_text("to the end")
"""


def test_it_ends_in_order_when_its_terminal_is_closed(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    done = tmp_path / "done"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(done)], stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    assert os.read(ours, 100).strip() == b"begun"
    os.close(ours)
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 0
    assert done.read_text() == "to the end"


def test_a_full_disk_is_still_told() -> None:
    program = "from rstar2_train.utils.terminal import outlive_terminal\noutlive_terminal()\nprint('x', flush=True)"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode != 0
    assert b"No space left on device" in ended.stderr


@pytest.mark.parametrize(("before", "asked"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_nohup_is_heeded(before: signal.Handlers, asked: bool) -> None:
    kept = signal.signal(signal.SIGHUP, before)
    try:
        assert (signal.SIGHUP in ending_signals()) is asked
    finally:
        signal.signal(signal.SIGHUP, kept)
