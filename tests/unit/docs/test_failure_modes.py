"""docs/failure-modes.md has one section per reason, with the reason as its heading."""

from __future__ import annotations

import re
from typing import get_args

from rstar2_operator.decide.containers import OUT_OF_MEMORY
from rstar2_operator.decide.decision import DELETING, INVALID_SPEC, RESTART_REASONS, SCHEDULING_TIMEOUT, Phase
from rstar2_operator.decide.diagnostics import MAY_RESOLVE, REASONS
from rstar2_operator.decide.disruption import DISRUPTED, EVICTED, REJECTED
from rstar2_operator.decide.failure_policy import POD_LOST
from rstar2_operator.node_health import FAULT_INDICATORS
from rstar2_train.api.contracts import Reason
from scripts.docs.repository import ROOT

PAGE = (ROOT / "docs" / "failure-modes.md").read_text("utf-8")
SUCCESSES = {"Completed", "StepsReached", "TruncationSettled", "AllCorrect", "Collapsed", "OffPolicy", "Suspended"}
"""Outcome reasons that are no failures."""
JOB_FAILURES = {"DeadlineExceeded", "StageFailed", "PrepareFailed"}
"""Reasons of phase Failed, as operator/rstar2_operator/decide/decide.py has them."""


def test_failure_modes_page_has_each_reason() -> None:
    """No reason without advice, and no section of a reason that does not exist any more."""
    outcomes = set(get_args(Reason)) - SUCCESSES
    restarts = {text.partition(":")[0] for text in (DISRUPTED, EVICTED, REJECTED, OUT_OF_MEMORY, POD_LOST)}
    plans = {DELETING, INVALID_SPEC, SCHEDULING_TIMEOUT, *RESTART_REASONS}
    assert set(re.findall(r"^### (\w+)$", PAGE, flags=re.MULTILINE)) == (
        REASONS | outcomes | restarts | plans | JOB_FAILURES
    )


def test_failure_modes_index_has_each_reason() -> None:
    """The page opens with symptoms, and each reason is an answer to exactly one of them."""
    index = PAGE.partition("## By symptom")[2].partition("## Questions")[0]
    linked = re.findall(r"\[(\w+)\]\(#\w+\)", index)
    assert sorted(linked) == sorted(re.findall(r"^### (\w+)$", PAGE, flags=re.MULTILINE))


def test_failure_modes_job_failures_are_in_the_source() -> None:
    """The reasons of phase Failed are literals of the policy."""
    folder = ROOT / "operator" / "rstar2_operator" / "decide"
    source = "".join(file.read_text("utf-8") for file in sorted(folder.glob("*.py")))
    assert {reason for reason in JOB_FAILURES if f'"{reason}"' not in source} == set()


def test_failure_modes_page_has_each_phase() -> None:
    """The table of phases, in the order of a job's life."""
    table = PAGE.partition("\n| Phase | Meaning |\n")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([^|]+) \|", table, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(cells)) == list(get_args(Phase))


def test_failure_modes_page_has_the_reasons_that_may_resolve() -> None:
    """A problem with such a reason does not make a job Stalled."""
    (row,) = re.findall(r"^\| `Stalled` \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == MAY_RESOLVE


def test_failure_modes_page_has_each_sign_of_a_faulty_node() -> None:
    """The parts of each name around its wildcards."""
    section = PAGE.partition("\n### NodeUnhealthy\n")[2].partition("\n### ")[0]
    names = {indicator.name for indicator in FAULT_INDICATORS}
    assert {name for name in names if not all(part in section for part in name.split("*"))} == set()
