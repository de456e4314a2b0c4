"""Counts attacks by and on tools, environments, MCP servers and checkers, and those that had an effect.

Key `attacks` of `bench.environments`. The attacks are tests: each plays rollouts against real servers, or runs a
snippet in the real sandbox. A failed test of the first group is a rollout that was scored in spite of a fault, or had
another status than documented. A failed test of the second group is an escape.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.learning import ROOT

TESTS = ROOT / "tests" / "integration"
SCORED = {
    "environment": ("tools/test_environment.py", "fault or lost or full"),
    "mcp": ("tools/test_mcp.py", "faulty or lost"),
    "agent": ("tools/test_agent_program.py", "without_reward or faulty or key"),
    "agent_pods": ("tools/test_agent_pods.py", "without_reward or lost or token or without_pod"),
    "tool_and_checker": ("judge/test_user_functions.py", "attack"),
}
"""Name in the results -> file of tests and pytest's expression that selects its attacks."""
ESCAPES = {"sandbox": ("judge/test_hostile.py", "contained")}


def measure() -> dict[str, Any]:
    """Return the value of the key `attacks`. Raises RuntimeError if attacks could not be tried."""
    counts = {name: run_tests(*tests) for name, tests in (SCORED | ESCAPES).items()}
    return {
        "tried": sum(tried for tried, _ in counts.values()),
        "wrong_scores": sum(counts[name][1] for name in SCORED),
        "escapes": sum(counts[name][1] for name in ESCAPES),
        "tried_by": {name: tried for name, (tried, _) in counts.items()},
    }


def run_tests(file: str, expression: str) -> tuple[int, int]:
    """Return how many tests ran and how many failed. Raises RuntimeError if none ran, or one could not start."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / file), "-k", expression]
        done = subprocess.run([*argv, f"--junitxml={report}"], cwd=ROOT, check=False)
        cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
    tried = [case for case in cases if case.find("skipped") is None]
    if not tried or any(case.find("error") is not None for case in tried):
        raise RuntimeError(f"{file}: pytest exited with {done.returncode}: not every attack could be tried")
    return len(tried), sum(case.find("failure") is not None for case in tried)
