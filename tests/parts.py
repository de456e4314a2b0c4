"""Runs targets of the Makefile and prints the time that each took: `make check` and `make test`.

The parts start in the given order, at most --jobs at a time, each as soon as the machine has the memory that it needs;
all of them run even if one fails. Parts of --background run next to them, one by one and at a lower priority: they
compute, and take the processor time that waiting parts leave. The outputs are printed in the order of the parts, so
that two outputs never mix: that of the first running part as it comes. The last lines have the elapsed and the
processor time of each part, the longest first, how busy the processors were, and name the failed parts and tests.

A few failed tests run once more, with no other part next to them. If they pass, so does the run, which names them: they
do not bear a busy machine, because they have a race.
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

import psutil

POLL_SECONDS = 0.2
BACKGROUND_NICE = 5
"""Of a part of --background: it gets about a quarter of a processor that other parts keep busy."""
MOST_AGAIN = 3
"""Failed tests that run once more: more are no accident."""
LATEST_AGAIN_SECONDS = 4200
"""Seconds after the start from which no test runs again: CI ends a run after 90 minutes."""
stopped = threading.Event()
"""Set by SIGTERM. A handler that raises could strike between the start of a part and its entry in `parts`."""


class Part:
    """A target of the Makefile: waiting, running or done."""

    def __init__(self, text: str, *, background: bool = False) -> None:
        """Describe a part; `text` is NAME or NAME:GB, with the memory that it needs."""
        self.name, _, gigabytes = text.partition(":")
        self.background = background
        self.gigabytes = float(gigabytes or 0)
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.returncode: int | None = None
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 (read until the end)
        self.failures = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 (tests/conftest.py writes a line per failed test)
        self._process: subprocess.Popen[bytes] | None = None
        self._start = 0.0
        self._done = threading.Event()  # a join() that a signal interrupts may take the thread for finished

    def start(self, **environment: str) -> None:
        """Start the target with these variables, too."""
        self._start = time.monotonic()
        # A part of a part reports to the outer one.
        environment = {"RSTAR2_FAILURES": self.failures.name} | dict(os.environ) | environment
        priority = ["nice", f"-n{BACKGROUND_NICE}"] if self.background else []
        command = [*priority, "make", "--no-print-directory", self.name]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT, env=environment
        )
        threading.Thread(target=self._measure, args=(self._process,), daemon=True).start()

    def _measure(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the end. The processor time is that of all descendants that a parent waited for."""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = self.returncode = os.waitstatus_to_exitcode(status)  # for Popen's destructor
        self.seconds = time.monotonic() - self._start
        self.cpu_seconds = usage.ru_utime + usage.ru_stime
        self._done.set()

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def running(self) -> bool:
        return self.started and not self.done

    @property
    def passed(self) -> bool:
        return self.returncode == 0

    def failed_tests(self) -> list[str]:
        """Return a line per failed test: its name, and the error."""
        return list(dict.fromkeys(Path(self.failures.name).read_text().replace("\t", " ").splitlines()))

    def row(self) -> str:
        """Return the part's row of the summary."""
        result = "passed" if self.passed else "FAILED"
        return f"  {self.name:20} {result}  {self.seconds:5.0f} s, {self.cpu_seconds:5.0f} s of processor"

    def wait(self) -> None:
        """Return when the part is done, or immediately if it never started."""
        if self.started:
            self._done.wait()

    def terminate(self) -> None:
        """Stop the part if it still runs; make stops the processes that it started."""
        if self._process is not None and not self.done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)  # Popen.terminate() might reap it before _measure() does
            self._done.wait()


class Schedule:
    """The parts of one run."""

    def __init__(self, parts: Sequence[Part], *, jobs: int, gigabytes: float) -> None:
        self._parts = parts
        self._jobs = jobs
        self._gigabytes = gigabytes

    def advance(self) -> None:
        """Start each waiting part, in order, for which there are a slot and memory; one always runs."""
        for part in self._parts:
            running = [each for each in self._parts if each.running]
            free = self._gigabytes - sum(each.gigabytes for each in running)
            slots = (1 if part.background else self._jobs) - sum(each.background == part.background for each in running)
            if not part.started and (not running or (slots > 0 and part.gigabytes <= free)):
                part.start()

    def follow(self, part: Part) -> None:
        """Print the output of a part, and all that it adds until it is done. Raises SystemExit after SIGTERM."""
        print(f"\n=== {part.name}", flush=True)
        with Path(f"/proc/self/fd/{part.output.fileno()}").open("rb") as reader:  # an offset of its own
            last = False
            while not last:
                self.advance()
                last = part.done
                shutil.copyfileobj(reader, sys.stdout.buffer)
                sys.stdout.buffer.flush()
                if stopped.is_set():
                    sys.exit(143)
                time.sleep(0 if last else POLL_SECONDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts and print the summary; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="tests/parts.py", description=__doc__)
    parser.add_argument(
        "parts", metavar="PART[:GB]", nargs="+", help="a target of the Makefile, with the memory that it needs in GB"
    )
    parser.add_argument("--background", metavar="PART[:GB]", nargs="+", default=[], help="parts that mostly compute")
    parser.add_argument("--jobs", type=int, default=1, help="number of parts that run at the same time (default: 1)")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    start = time.monotonic()
    psutil.cpu_percent()  # the next call counts from here
    outermost = "RSTAR2_FAILURES" not in os.environ  # else this is a part of `make test`, which names the failed tests
    parts = [*map(Part, options.parts), *(Part(text, background=True) for text in options.background)]
    again: list[Part] = []
    schedule = Schedule(parts, jobs=options.jobs, gigabytes=psutil.virtual_memory().available / 1e9)
    try:
        for part in parts:
            schedule.follow(part)
        # That of all processes: a part does not count the containers of its nodes, which other processes started.
        busy, seconds = psutil.cpu_percent(), time.monotonic() - start
        failed = [part for part in parts if not part.passed]
        if outermost and are_worth_another_try(failed, seconds):
            again.extend(map(run_alone, failed))
    except KeyboardInterrupt:  # the terminal sent it to the parts too: wait until they have cleaned up
        for part in parts:
            part.wait()
        return 130
    finally:
        for part in parts:
            part.terminate()
    print_times(parts, seconds, busy)
    return print_failures(failed, again)


def print_times(parts: Sequence[Part], seconds: float, busy: float) -> None:
    """Print a row per part, and one of all."""
    cpu = sum(part.cpu_seconds for part in parts)
    longest_first = sorted(parts, key=lambda part: -part.seconds)
    print("\n=== time per part", *(part.row() for part in longest_first), sep="\n")
    print(f"  {'all':20}         {seconds:5.0f} s, {cpu:5.0f} s of processor; the processors were {busy:.0f} % busy")


def print_failures(failed: Sequence[Part], again: Sequence[Part]) -> int:
    """Print the failed parts and tests; return 1 if there are any that did not pass alone."""
    passed_alone = bool(again) and all(part.passed for part in again)
    if failed:
        heading = "failed next to other parts, passed alone:" if passed_alone else "failed:"
        print(heading, *(part.name for part in failed))
    for line in tests_of(failed):
        print(line)
    return 1 if failed and not passed_alone else 0


def tests_of(parts: Sequence[Part]) -> list[str]:
    """Return the lines of all failed tests."""
    return [line for part in parts for line in part.failed_tests()]


def are_worth_another_try(failed: Sequence[Part], seconds: float) -> bool:
    """Return whether the failed tests shall run alone: few of them, each part failed by one, and time is left."""
    few = len(tests_of(failed)) <= MOST_AGAIN and all(part.failed_tests() for part in failed)
    return bool(failed) and few and seconds < LATEST_AGAIN_SECONDS


def run_alone(failed: Part) -> Part:
    """Run the failed tests of a part again, and print the output."""
    part = Part(failed.name)
    part.start(RSTAR2_ONLY=failed.failures.name)
    try:
        Schedule([part], jobs=1, gigabytes=0).follow(part)
    finally:
        part.terminate()
    return part


if __name__ == "__main__":
    sys.exit(main())
