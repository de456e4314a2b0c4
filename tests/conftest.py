"""Rules for every test: markers, skips that count as failures in CI, and a SIGTERM that cleans up.

- A test that uses the `cluster` fixture has the marker `cluster`.
- A test with the marker `gpu` is collected only on a machine with a GPU, or with `-m gpu`, where it skips with the
  reason if there is none.
- With RSTAR2_REQUIRE_ALL=1, as .ci/run sets it, a skip is a failure: in CI a skip would hide that a part never ran.
- The names of failed tests are appended to the file of RSTAR2_FAILURES, which tests/parts.py prints last.
- Of all tests, only those that such a file names run, if it is that of RSTAR2_ONLY.
- The time of each folder of tests is printed at the end.
- The garbage collector does not scan the objects of the test runner during a test: that takes a quarter of a second,
  and would hold the event loop of a service that runs in the test. Services do the same (utils/event_loop.py).
- SIGTERM acts like Ctrl-C, so that the fixtures stop every process that they started. SIGINT has its default too: a
  shell starts commands in the background with SIGINT ignored, and tests of Ctrl-C would not end.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Container, Generator
from pathlib import Path

import hypothesis
import pytest

# The time of an example depends on the load of the machine more than on the code.
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.default_int_handler)
# Torch's threads spin as shortly as those of a rank (rstar2_train/trainer/actors.py), here and in all child processes,
# because other parts of `make test` run next to them.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
REQUIRE_ALL = os.environ.get("RSTAR2_REQUIRE_ALL") == "1"
GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
"""A driver of NVIDIA or AMD creates one of them. Without it, torch is not asked: its import takes seconds."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the time of each folder of tests; write failed tests to the file of RSTAR2_FAILURES, if set."""
    print_times(terminalreporter)
    if path := os.environ.get("RSTAR2_FAILURES"):
        with Path(path).open("a") as file:
            for report in (*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")):
                error = next((line for line in report.longreprtext.splitlines() if line.startswith("E ")), "")
                file.write(f"{report.nodeid}\t{error[1:].strip()}\n")


def print_times(reporter: pytest.TerminalReporter) -> None:
    """Print how long the tests of each folder took, with their fixtures; the slowest folder is first."""
    seconds, tests = Counter[str](), Counter[str]()
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = str(Path(report.nodeid.partition("::")[0]).parent)
                seconds[folder] += report.duration  # type: ignore[assignment]
                tests[folder] += report.when == "call"
    if len(seconds) > 1:
        reporter.write_sep("=", "time per folder")
        for folder, total in seconds.most_common():
            reporter.write_line(f"{total:7.1f} s  {tests[folder]:5} tests  {folder}")


def missing_gpu() -> str:
    """Return why no test can use a GPU here; empty if one can."""
    if not any(device.exists() for device in GPU_DEVICES):
        return f"no GPU: none of {', '.join(map(str, GPU_DEVICES))} exists"
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU: check the driver"


def select(config: pytest.Config, items: list[pytest.Item], names: Container[str]) -> None:
    """Leave out all tests but those with these names."""
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = [item for item in items if item.nodeid in names]


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Pass if no test of a part has to run again."""
    if "RSTAR2_ONLY" in os.environ and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the marker `cluster`; leave out GPU tests, or skip them, on a machine without a GPU."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)
    if path := os.environ.get("RSTAR2_ONLY"):
        select(config, items, {line.partition("\t")[0] for line in Path(path).read_text().splitlines()})
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = missing_gpu() if gpu else ""
    if not reason:
        return
    if "gpu" in config.getoption("markexpr"):
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason=reason))
    else:
        config.hook.pytest_deselected(items=gpu)
        items[:] = [item for item in items if item not in gpu]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Stop the garbage collector while test modules are imported: their objects stay, and it would scan them often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Keep the objects that exist before a test from the garbage collector until its end."""
    gc.freeze()
    try:
        return (yield)
    finally:
        gc.unfreeze()


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure with the same reason; an expected failure (xfail) is unchanged."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"RSTAR2_REQUIRE_ALL=1 and this test did not run. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Check the outcome of every test."""
    report = yield
    if REQUIRE_ALL:
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Check the outcome of every module: a module can skip itself as a whole."""
    report = yield
    if REQUIRE_ALL:
        refuse_skip(report)
    return report
