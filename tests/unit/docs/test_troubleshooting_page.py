"""The headings of docs/troubleshooting.md are parts of messages, so that a reader finds them."""

from __future__ import annotations

import re

from scripts.docs.repository import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
OF_OTHERS = {
    *("operation not permitted, from runsc", "The engine does not start", "No new step for a long time"),
    *("CUDA out of memory", "Killed, without a message", "Connections to 127.0.0.1 fail behind a proxy"),
    *("Stacks of a process", "No matching distribution found", "MLflow on another machine", "Start over"),
}
"""Symptoms, tasks, and messages of other programs."""


def test_troubleshooting_headings_are_messages_of_the_project() -> None:
    """All others are listed above."""
    paths = [path for name in ("rstar2_train", "scripts") for path in sorted((ROOT / name).rglob("*.py"))]
    source = "".join(path.read_text("utf-8") for path in paths)
    headings = set(re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE))
    assert headings >= OF_OTHERS
    assert {heading for heading in headings - OF_OTHERS if heading not in source} == set()
