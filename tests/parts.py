"""Runs targets of the Makefile and prints the time that each took: `make check` and `make test`.

The parts run one after the other, all of them even if one fails. Each part named by --parallel starts with the first
one and runs next to them; its output is printed when the others are done, so that two outputs never mix. The last lines
have the elapsed and the processor time of each part, and name the failed parts and tests.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil

POLL_SECONDS = 0.2
stopped = threading.Event()
"""Set by SIGTERM. A handler that raises could strike between the start of a part and the note of it in `running`."""


class Part:
    """A target of the Makefile, running or done."""

    def __init__(self, name: str, output: IO[bytes] | None = None) -> None:
        """Start the target; its output is written to `output`, by default to the terminal."""
        self.name = name
        self.output = output
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.returncode: int | None = None
        self._start = time.monotonic()
        self._process = subprocess.Popen(
            ["make", "--no-print-directory", name], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT if output else None,
        )  # fmt: skip
        self._done = threading.Event()  # a join() that a signal interrupts may take the thread for finished
        threading.Thread(target=self._measure, daemon=True).start()

    def _measure(self) -> None:
        """Wait for the end. The processor time is that of all descendants that a parent waited for."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = self.returncode = os.waitstatus_to_exitcode(status)  # for Popen's destructor
        self.seconds = time.monotonic() - self._start
        self.cpu_seconds = usage.ru_utime + usage.ru_stime
        self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def passed(self) -> bool:
        return self.returncode == 0

    def row(self) -> str:
        """Return the part's row of the summary."""
        result = "passed" if self.passed else "FAILED"
        return f"  {self.name:20} {result}  {self.seconds:5.0f} s, {self.cpu_seconds:5.0f} s of processor"

    def wait(self) -> None:
        """Return when the part is done. Raises SystemExit after SIGTERM."""
        while not self._done.wait(POLL_SECONDS):
            exit_if_stopped()

    def terminate(self) -> None:
        """Stop the part if it still runs; make stops the processes that it started."""
        if not self.done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)  # Popen.terminate() might reap it before _measure() does
            self._done.wait()


def exit_if_stopped() -> None:
    """Raise SystemExit with the code of SIGTERM if it was received."""
    if stopped.is_set():
        sys.exit(143)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and print the summary; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="tests/parts.py", description=__doc__)
    parser.add_argument("parts", nargs="+", help="targets of the Makefile, in their order")
    parser.add_argument(
        "--parallel", metavar="PART[:GB]", action="append", default=[],
        help="a part that runs next to the others, or last if less memory (in GB) is free; may be given again",
    )  # fmt: skip
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    start = time.monotonic()
    failures = None
    if "RSTAR2_FAILURES" not in os.environ:  # else this is a part of `make test`, which prints them
        failures = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 (read at the end)
        os.environ["RSTAR2_FAILURES"] = failures.name
    names, running = list(options.parts), []
    free_gb = psutil.virtual_memory().available / 1e9
    try:
        for part in options.parallel:
            name, _, needs_gb = part.partition(":")
            if free_gb >= float(needs_gb or 0):
                free_gb -= float(needs_gb or 0)
                running.append(Part(name, tempfile.TemporaryFile()))  # noqa: SIM115 (read until the end)
            else:
                names.append(name)
        for name in names:
            print(f"\n=== {name}", flush=True)
            running.append(Part(name))
            running[-1].wait()
        for part in running:
            if part.output is not None:
                print(f"\n=== {part.name} (started with the first part)", flush=True)
                follow(part, part.output)
    except KeyboardInterrupt:  # the terminal sent it to the parts too: wait until they have cleaned up
        for part in running:
            part.wait()
        return 130
    finally:
        for part in running:
            part.terminate()
    print("\n=== time per part", *(part.row() for part in running), sep="\n")
    print(f"  {'all':20}         {time.monotonic() - start:5.0f} s")
    failed = [part.name for part in running if not part.passed]
    if failed:
        print("failed:", *failed)
        print(failures.read() if failures else "", end="")
    return 1 if failed else 0


def follow(part: Part, output: IO[bytes]) -> None:
    """Print the output of a part, and all that it adds until it is done."""
    with Path(f"/proc/self/fd/{output.fileno()}").open("rb") as reader:  # an offset of its own
        last = False
        while not last:
            last = part.done
            shutil.copyfileobj(reader, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            time.sleep(0 if last else POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
