"""The comparison of the cluster's definition with the fields of this version."""

from __future__ import annotations

import copy
from typing import Any

from rstar2_operator.definition import outdated, wait_until_current
from rstar2_train.api.crd import build_schema
from tests.support.fake_kube_api import api_error

KIND = [{"group": "rstar2.dev", "kind": "AgenticRLJob", "version": "v1alpha1"}]


def document(*removed: str) -> dict[str, Any]:
    """Return the OpenAPI document of a definition without some fields."""
    schema = copy.deepcopy(build_schema())
    for path in removed:
        *folders, last = path.split(".")
        node = schema
        for folder in folders:
            node = node["properties"][folder.removesuffix("[]")]
            node = node["items"] if folder.endswith("[]") else node
        del node["properties"][last]
    schemas = {"dev.rstar2.v1alpha1.AgenticRLJob": {**schema, "x-kubernetes-group-version-kind": KIND}, "other": {}}
    return {"components": {"schemas": schemas}}


def test_definition_current_has_no_message() -> None:
    """The definition of this version, and one with further fields, can be used."""
    newer = document()
    newer["components"]["schemas"]["dev.rstar2.v1alpha1.AgenticRLJob"]["properties"]["spec"]["properties"]["new"] = {}
    assert outdated(document()) == outdated(newer) == ""


def test_definition_older_names_its_missing_fields() -> None:
    """Fields of spec and status count, in lists too; the message has the command that helps."""
    message = outdated(document("status.stages[].ended", "spec.managedBy"))
    assert "it lacks spec.managedBy, status.stages[].ended. Apply it: kubectl apply --server-side -f crds/" in message
    assert "spec, status" in outdated({})


class Definitions:
    """A client that reads one document after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def openapi(self) -> Any:
        """Return the next document, or raise it."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_definition_older_delays_the_leader(monkeypatch: Any) -> None:
    """The replica waits and reports why, until the definition is upgraded; without rights it does not wait."""
    monkeypatch.setattr("rstar2_operator.definition.POLL_SECONDS", 0.0)
    missing, reports = api_error(404, "NotFound", "no definition"), list[str]()
    client: Any = Definitions(missing, document("spec.managedBy"), document())
    await wait_until_current(client, report=reports.append)
    assert "NotFound" in reports[0] and "spec.managedBy" in reports[1] and reports[2:] == [""]
    forbidden: Any = Definitions(api_error(403, "Forbidden", "no"))
    await wait_until_current(forbidden, report=reports.append)
    assert len(reports) == 3
