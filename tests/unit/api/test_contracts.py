"""Version skew of the contracts between processes, in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rstar2_train.api.contracts import CONTRACT_VERSION, AttemptRecord, Contract, Outcome, Progress

MESSAGES: list[Contract] = [
    Progress(stage="rl", attempt=2, step=3),
    Outcome(stage="rl", attempt=2, outcome="completed", reason="StepsReached"),
    AttemptRecord(attempt=2, uid="1"),
]


@pytest.fixture(params=MESSAGES, ids=lambda message: type(message).__name__)
def message(request: pytest.FixtureRequest) -> Contract:
    """Return one message of each contract."""
    message: Contract = request.param
    return message


def read(message: Contract, **changes: Any) -> Contract:
    """Read a message as another process writes it."""
    return type(message).model_validate_json(json.dumps(message.model_dump(mode="json") | changes))


def test_contract_has_its_own_version(message: Contract) -> None:
    """The version of the API does not appear in a message."""
    written = message.model_dump(mode="json")
    assert written["contractVersion"] == CONTRACT_VERSION
    assert "apiVersion" not in written


def test_contract_newer_writer_adds_fields_is_read(message: Contract) -> None:
    """A reader ignores fields that a newer writer added to the same version of the contract."""
    assert read(message, newField={"a": 1}) == message


def test_contract_older_writer_is_read(message: Contract) -> None:
    """A reader accepts a message of an older version, and a message without a version."""
    assert read(message, contractVersion=CONTRACT_VERSION - 1) == message
    older = {key: value for key, value in message.model_dump(mode="json").items() if key != "contractVersion"}
    assert type(message).model_validate_json(json.dumps(older | {"apiVersion": "rstar2.dev/v1alpha1"})) == message


@pytest.mark.parametrize("version", [CONTRACT_VERSION + 1, "2", None])
def test_contract_newer_version_is_rejected(message: Contract, version: object) -> None:
    """A reader rejects a version that it does not know, and names what to do."""
    with pytest.raises(ValidationError, match=f"contractVersion is {version}, but .* in the same version"):
        read(message, contractVersion=version)


@pytest.mark.parametrize(
    "edit",
    [
        *({"totalSteps": -5}, {"step": -1}, {"rolloutsDone": -1}, {"attempt": 10**12}, {"mlflowRunId": "x" * 200}),
        *({"estimatedRemainingSeconds": -1.0}, {"updatedAt": 1e300}, {"checkpoint": {"path": "a", "step": -1}}),
    ],
)
def test_progress_out_of_the_status_is_rejected(edit: dict[str, Any]) -> None:
    """The operator copies reports into the job's status: a number that the CRD rejects would block each write."""
    with pytest.raises(ValidationError):
        read(Progress(stage="rl", attempt=2, step=3), **edit)
