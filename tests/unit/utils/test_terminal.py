"""A program whose terminal is closed continues, or stops in order."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2_train.utils.terminal import stop_signals

PROGRAM = """\
import pathlib, signal, sys, time
from rich.console import Console
from rstar2_train.utils.terminal import ignore_closed_terminal, stop_signals
ignore_closed_terminal()
signals = []
for signum in stop_signals():
    signal.signal(signum, lambda *_: signals.append(1))
print("started", flush=True)
while not signals:
    time.sleep(0.01)
console = Console()
console.print("[red]discarded")
print("discarded", file=sys.stderr, flush=True)
pathlib.Path(sys.argv[1]).write_text("finished")
"""
PRINTING = """\
from rstar2_train.utils.terminal import ignore_closed_terminal
ignore_closed_terminal()
print("x", flush=True)
"""


def test_ignore_closed_terminal_discards_output(tmp_path: Path) -> None:
    """A program finishes its work after its terminal was closed."""
    master, terminal = pty.openpty()
    result = tmp_path / "result"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(result)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    assert os.read(master, 100).strip() == b"started"
    os.close(master)
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 0
    assert result.read_text() == "finished"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_ignore_closed_terminal_accepts_closed_streams(closed: str, tmp_path: Path) -> None:
    """A stream without a descriptor at the start is the null device: no file gets its output."""
    program = PRINTING + "open(sys.argv[1], 'w'); print('y', flush=True); print('z', file=sys.stderr); sys.stdin.read()"
    file = tmp_path / "file"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", f"import sys\n{program}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr.replace("z\n", "")) == (0, "") and file.read_text() == ""


def test_ignore_closed_terminal_full_disk_still_fails() -> None:
    """Other errors of a write are not discarded."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", PRINTING], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode != 0
    assert b"No space left on device" in done.stderr


def test_ignore_closed_terminal_escapes_characters() -> None:
    """A terminal whose encoding lacks a character gets its escape, not a UnicodeEncodeError."""
    program = PRINTING + "print('π')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, b"x\n\\u03c0\n")


@pytest.mark.parametrize("function", ["buffer_streams", "ignore_closed_terminal"])
def test_buffered_streams_are_immediate_with_pythonunbuffered(function: str) -> None:
    """The log of a container shows each line when it is printed."""
    program = f"import os\nfrom rstar2_train.utils import terminal\nterminal.{function}()\nprint('x')\nos._exit(0)"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=environment)
    assert done.stdout == b"x\n"


@pytest.mark.parametrize(("handler", "included"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_stop_signals_nohup_excludes_sighup(handler: signal.Handlers, included: bool) -> None:
    """nohup ignores SIGHUP; the program must not handle it."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        assert (signal.SIGHUP in stop_signals()) is included
    finally:
        signal.signal(signal.SIGHUP, before)


HIDING = """\
import termios
from rstar2_train.utils.terminal import hidden_control_characters
def echoes():
    return bool(termios.tcgetattr(0)[3] & termios.ECHOCTL)
states = [echoes()]
with hidden_control_characters():
    states.append(echoes())
print(states + [echoes()], flush=True)
"""


def test_hidden_control_characters_are_restored() -> None:
    """In the foreground of a terminal. Without a terminal nothing happens."""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", HIDING])
    assert os.read(master, 100).strip() == b"[True, False, True]"
    os.waitpid(pid, 0)
    os.close(master)
    without = HIDING.replace("bool(termios.tcgetattr(0)[3] & termios.ECHOCTL)", "None")
    subprocess.run([sys.executable, "-c", without], stdin=subprocess.DEVNULL, check=True)
