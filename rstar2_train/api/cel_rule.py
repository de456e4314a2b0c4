"""A rule of the CRD, in CEL. `cel` and `cel_objectives` have the tables of rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of x-kubernetes-validations."""

    at: str
    """Path of the schema node: `spec.stages[]`; empty for the whole object."""
    rule: str
    """CEL expression that must hold."""
    message: str
    """Error message."""
    message_expression: str = ""
    """CEL expression of a more specific error message; `message` is the fallback."""
    field: str = ""
    """Field of the error, relative to `at`."""

    def entry(self) -> dict[str, Any]:
        """Return the rule as an entry of x-kubernetes-validations."""
        parts = {"message": self.message, "messageExpression": self.message_expression, "fieldPath": self.field}
        return {"rule": self.rule, **{name: value for name, value in parts.items() if value}}


def each_grpo(condition: str, message: str) -> Rule:
    """Return a rule about every GRPO stage `s`, seen from `spec`.

    Its message cannot name the stage: the API server rejects message expressions whose length it cannot estimate.
    """
    return Rule(at="spec", rule=f"self.stages.all(s, !has(s.grpo) || {condition})", message=message, field=".stages")
