"""`make test`: every part of the checks, all of them even when one fails; then the time each took.

The parts run one after the other, but for one (--beside) that runs next to them from the beginning where the machine
has the memory for it: the end-to-end tests wait for containers much of their time. What it prints is shown when the
others are done, so that two outputs never mix.
"""

from __future__ import annotations

import argparse
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

BOTH_NEED_BYTES = 12e9
"""Of free memory, for the integration and the end-to-end tests at the same time."""
LOOK_SECONDS = 0.2


class Part:
    """A target of the Makefile: under way, or ended."""

    def __init__(self, name: str, output: IO[bytes] | None = None) -> None:
        """`output`: where what it prints goes; None is the terminal."""
        self.name = name
        self.output = output
        self.seconds = 0.0
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            ["make", "--no-print-directory", name], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT if output else None,
        )  # fmt: skip
        self._attended = threading.Thread(target=self._attend, daemon=True)
        self._attended.start()

    def _attend(self) -> None:
        self._process.wait()
        self.seconds = time.monotonic() - self._began

    @property
    def ended(self) -> bool:
        return not self._attended.is_alive()

    @property
    def passed(self) -> bool:
        return self._process.returncode == 0

    def line(self) -> str:
        """Its line of the summary."""
        return f"  {self.name:12} {'passed' if self.passed else 'FAILED'}  {self.seconds:5.0f} s"

    def wait(self) -> None:
        """Until it has ended."""
        self._attended.join()

    def end(self) -> None:
        """End it early; make ends what it started."""
        if not self.ended:
            self._process.terminate()
            self.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="make test", description=__doc__)
    parser.add_argument("parts", nargs="+", help="targets of the Makefile, in their order")
    parser.add_argument("--beside", help="one of them that runs next to the others")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    names, running = list(given.parts), []
    try:
        if given.beside in names and psutil.virtual_memory().available >= BOTH_NEED_BYTES:
            names.remove(given.beside)
            running.append(Part(given.beside, tempfile.TemporaryFile()))  # noqa: SIM115 (it lives as long as we do)
        for name in names:
            print(f"\n=== {name}", flush=True)
            running.append(Part(name))
            running[-1].wait()
        for part in running:
            if part.output is not None:
                print(f"\n=== {part.name}, which began with the first", flush=True)
                follow(part, part.output)
    except KeyboardInterrupt:  # the parts have it too, from the terminal: they take down what they made
        for part in running:
            part.wait()
        return 130
    finally:
        for part in running:
            part.end()
    print("\n=== time by part", *(part.line() for part in running), sep="\n")
    print(f"  {'all':12}         {time.monotonic() - began:5.0f} s")
    failed = [part.name for part in running if not part.passed]
    if failed:
        print("failed:", *failed)
    return 1 if failed else 0


def follow(part: Part, output: IO[bytes]) -> None:
    """Show what a part has printed, and what it goes on to print until it ends."""
    with Path(f"/proc/self/fd/{output.fileno()}").open("rb") as reader:  # an offset of its own
        last = False
        while not last:
            last = part.ended
            shutil.copyfileobj(reader, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            time.sleep(0 if last else LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
