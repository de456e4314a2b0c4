"""Operator and trainer image of different versions, in both directions, at the command line and the job file.

tests/unit/api/test_contracts.py has the messages between them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2_train.api.contracts import ExitCode
from rstar2_train.launch.pod.__main__ import main, parser
from tests.support.simulated_cluster import manifest

COMMON = ["--job", "/etc/rstar2/job.json", "--state", "/state/demo"]
OF_FIRST_VERSION = {
    "prepare": [*COMMON, "--progress", "demo-progress"],
    "launch": [*COMMON, "--stage", "rl", "--attempt", "1", "--nodes", "2", "--subdomain", "demo-trainer",
               "--progress", "demo-progress", "--engines", "demo-rollout:8000", "--judge", "http://demo-judge:8080"],
    "report": [*COMMON, "--ending", "completed"],
}  # fmt: skip
"""Commands of the operator of version 0.1.0. They never change: a later image must accept them."""


@pytest.mark.parametrize("command", OF_FIRST_VERSION)
def test_skew_older_operator_is_accepted(command: str) -> None:
    """A newer image needs no option that the first version does not pass."""
    assert parser().parse_args([command, *OF_FIRST_VERSION[command]]).command == command


def report(tmp_path: Path, *options: str, **spec: object) -> int:
    """Run the report of a job in this process, as the image of an older version would."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps(manifest("s", **spec)))
    log = tmp_path / "log"
    log.touch()
    return main(["report", "--job", str(job), "--state", str(tmp_path), "--ending", "completed",
                 "--termination-log", str(log), *options])  # fmt: skip


def test_skew_newer_operator_with_a_new_option_is_named(tmp_path: Path) -> None:
    """An older image does not restart in a loop: it fails with the option and the fix."""
    assert report(tmp_path, "--new-option", "1") == ExitCode.CONFIGURATION
    message = (tmp_path / "log").read_text()
    assert "--new-option" in message and "spec.trainer.image" in message


def test_skew_newer_operator_with_a_new_field_is_named(tmp_path: Path) -> None:
    """A set field that an older image does not know is an error, because the job depends on it."""
    assert report(tmp_path, newField=1) == ExitCode.CONFIGURATION
    message = (tmp_path / "log").read_text()
    assert "newField" in message and "not a valid job" in message
