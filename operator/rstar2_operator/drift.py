"""Correction of drift: finds objects that another client changed, and limits how often they are written again.

`as_applied` compares the fields that the operator sets, and quantities by value, because the API server fills in
defaults. Fields that another client has added are known from their owner (field_owners.py); `replacement` removes them.
An object that differs right after it was written is the server's own notation, and is left alone until it changes. An
object that is changed again and again is corrected once per minute, so that two controllers cannot form a fast loop.
So is an object to which another operator applies a form of its own.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

from rstar2_operator import names
from rstar2_operator.cached_object import ADDITIONS, strip_fields
from rstar2_operator.decide.advice import APPLY_REJECTED, CONTESTED
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.field_owners import KINDS as OWNED_KINDS
from rstar2_operator.field_owners import RESTARTED_AT
from rstar2_operator.observed import Object, ObservedJob, annotations_of, as_json, labels

log = logging.getLogger(__name__)

KINDS = OWNED_KINDS | {"ServiceAccount"}
"""Kinds that are corrected: not claims, which a person may enlarge, and not Jobs, which are immutable."""
EXACT = frozenset({"NetworkPolicy", "Role"})
"""Kinds in which every difference is drift, because it would grant access."""
SCALED_KINDS = frozenset({"Deployment", "StatefulSet"})
"""Kinds with replicas and a pod template."""
REQUIRED = frozenset({"allowPrivilegeEscalation", "automountServiceAccountToken"})
"""Fields whose default is True. The API server keeps a False of them, but drops that of others, such as readOnly."""
CORRECTION_SECONDS = 60.0
"""Minimum time between two corrections of one object."""
POWERS = dict(zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True))
SUFFIXES = {
    **{letter: Decimal(10) ** power for letter, power in POWERS.items()},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}


def as_applied(live: Object, body: dict[str, Any]) -> bool:
    """Return whether an object still has the applied fields. Pure."""
    exact = body["kind"] in EXACT
    if body["kind"] == "Deployment":
        applied = body["spec"]["replicas"]
        if applied and live["spec"].get("replicas") == 0:
            return False
        # An autoscaler may own the replicas, but without any the job would wait indefinitely.
        body = {**body, "spec": {field: value for field, value in body["spec"].items() if field != "replicas"}}
    same_labels = _contains(labels(live), body["metadata"].get("labels", {}), exact=False)
    applied, kept = ({part: form[part] for part in _parts(body) if part in form} for form in (body, live))
    return same_labels and _contains(kept, applied, exact=exact)


def additions_of(live: Object) -> list[str]:
    """Return what other clients have added to a cached object, as `CLIENT: path`."""
    return list(live["metadata"].get(ADDITIONS) or ())


def replacement(live: Object, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON Patch that gives an object exactly the applied parts, and so removes additions. Pure.

    The replicas and the time of `kubectl rollout restart` stay.
    """
    parts = {part: body[part] for part in _parts(body)}
    if body["kind"] in SCALED_KINDS:
        spec = parts["spec"] = {**body["spec"], "replicas": live["spec"].get("replicas") or body["spec"]["replicas"]}
        metadata = spec["template"]["metadata"]
        restarted = ((live["spec"]["template"].get("metadata") or {}).get("annotations") or {}).get(RESTARTED_AT)
        if restarted is not None:
            annotations = {**metadata.get("annotations", {}), RESTARTED_AT: restarted}
            spec["template"] = {**spec["template"], "metadata": {**metadata, "annotations": annotations}}
    return [{"op": "add", "path": f"/{part}", "value": value} for part, value in parts.items()]


def drifted(bodies: Iterable[dict[str, Any]], observed: ObservedJob) -> list[tuple[dict[str, Any], Object]]:
    """Return (applied, live) of the objects that were applied in this form and have another form now. Pure."""
    result = []
    for body in bodies:
        live = observed.child(body["kind"], body["metadata"]["name"])
        if live is None or body["kind"] not in KINDS or live["metadata"].get("deletionTimestamp"):
            continue
        same_hash = annotations_of(live).get(names.HASH) == body["metadata"]["annotations"][names.HASH]
        if same_hash and _differs(live, body):
            result.append((body, live))
    return result


def _differs(live: Object, body: dict[str, Any]) -> bool:
    return bool(additions_of(live)) or not as_applied(live, body)


def _parts(body: dict[str, Any]) -> list[str]:
    """Return the top-level members of an object that the operator manages."""
    return [part for part in body if part not in ("apiVersion", "kind", "metadata", "status")]


class DriftCorrections:
    """The corrections of one job: their times, and their rejections."""

    def __init__(self) -> None:
        self._corrected_at: dict[tuple[str, str], float] = {}
        self._server_form: dict[tuple[str, str], str] = {}
        """Digest of objects that the API server stores in a notation of its own."""
        self._applied: dict[tuple[str, str], str] = {}
        """Hash of the form of each object that was applied last."""
        self._contested: dict[tuple[str, str], float] = {}
        """Last time at which an object had the form of another operator."""
        self._rejected: dict[tuple[str, str], Diagnosis] = {}
        """Problem of the last correction, of objects that the API server rejected."""

    def due(
        self, pairs: Iterable[tuple[dict[str, Any], Object]]
    ) -> tuple[list[dict[str, Any]], list[Diagnosis], float | None]:
        """Return the objects to correct now, the problems of the others, and the seconds until the next correction.

        `pairs`: the result of `drifted`.
        """
        now, due, problems, waits = time.monotonic(), [], [], []
        for body, live in pairs:
            which = body["kind"], body["metadata"]["name"]
            if (known := self._server_form.get(which)) is not None and known == _form(live, body):
                continue
            wait = self._corrected_at.get(which, now - CORRECTION_SECONDS) + CORRECTION_SECONDS - now
            if wait > 0:
                waits.append(wait)
                if which in self._rejected:
                    problems.append(self._rejected[which])
            else:
                self._rejected.pop(which, None)
                self._corrected_at[which] = now
                due.append(body)
                log.info("%s: correcting drift of %s/%s", labels(body).get(names.JOB_LABEL), *which)
        return due, problems, min(waits, default=None)

    def uncontested(
        self, bodies: Iterable[dict[str, Any]], observed: ObservedJob
    ) -> tuple[list[dict[str, Any]], list[Diagnosis]]:
        """Return the changed objects to apply now, and the problems of those that another operator applies too.

        `bodies`: the result of `apply.changed`.
        """
        now, due = time.monotonic(), []
        for body in bodies:
            which, own = (body["kind"], body["metadata"]["name"]), body["metadata"]["annotations"][names.HASH]
            if observed.child(*which) is not None and self._applied.get(which) == own:
                self._contested[which] = now
                if now < self._corrected_at.get(which, -CORRECTION_SECONDS) + CORRECTION_SECONDS:
                    continue
                self._corrected_at[which] = now
            due.append(body)
        recent = [which for which, when in self._contested.items() if now < when + 2 * CORRECTION_SECONDS]
        return due, [Diagnosis("", "/".join(which), APPLY_REJECTED, CONTESTED) for which in recent]

    def reject(self, body: dict[str, Any], problem: Diagnosis) -> None:
        """Record that the API server rejected a correction."""
        self._rejected[body["kind"], body["metadata"]["name"]] = problem

    def record(self, body: dict[str, Any], live: Object) -> None:
        """Record that an object was written; `live`: the form in which the API server stored it."""
        self._applied[body["kind"], body["metadata"]["name"]] = body["metadata"]["annotations"][names.HASH]
        if body["kind"] not in KINDS:
            return
        which, stored = (body["kind"], body["metadata"]["name"]), strip_fields(body["kind"], live)
        if _differs(stored, body):
            self._server_form[which] = _form(stored, body)
        else:
            self._server_form.pop(which, None)


def _form(live: Object, body: dict[str, Any]) -> str:
    """Return the digest of the values that `_differs` compares."""
    compared = [labels(live), additions_of(live), *(live.get(part) for part in _parts(body))]
    return hashlib.sha256(as_json(compared).encode()).hexdigest()[:32]


def _contains(live: Any, applied: Any, *, exact: bool) -> bool:
    """Return whether a live value contains an applied one. An empty value equals a missing one, except in REQUIRED."""
    if live == applied:  # much faster than the comparison of their parts
        return True
    if isinstance(applied, dict):
        if live is not None and not isinstance(live, dict):
            return False
        live = live or {}
        if any(field not in live for field in REQUIRED & applied.keys()):
            return False
        if exact and any(live[field] for field in live.keys() - applied.keys()):
            return False
        return all(_contains(live.get(field), value, exact=exact) for field, value in applied.items())
    if isinstance(applied, list):
        if live is not None and not isinstance(live, list):
            return False
        live = live or []
        live_by_name, applied_by_name = _by_name(live), _by_name(applied)
        if not exact and applied_by_name is not None and live_by_name is not None:
            return all(
                name in live_by_name and _contains(live_by_name[name], value, exact=exact)
                for name, value in applied_by_name.items()
            )
        return len(live) == len(applied) and all(
            _contains(a, b, exact=exact) for a, b in zip(live, applied, strict=True)
        )
    if not applied or not live:
        return not applied and not live
    return _amount(applied) is not None and _amount(applied) == _amount(live)


def _by_name(entries: list[Any]) -> dict[str, Any] | None:
    """Return the entries of a list by name, None if some have no name of their own: other clients add entries."""
    if not all(isinstance(entry, dict) and entry.get("name") for entry in entries):
        return None
    by_name = {entry["name"]: entry for entry in entries}
    return by_name if len(by_name) == len(entries) else None


def _amount(value: Any) -> Decimal | None:
    """Return the value of a quantity such as "1", 1, "1000m" or "0.5Gi"; None for anything else."""
    text = str(value)
    suffix = next((end for end in (text[-2:], text[-1:]) if end in SUFFIXES), "")
    try:
        return Decimal(text[: len(text) - len(suffix)]) * SUFFIXES.get(suffix, Decimal(1))
    except InvalidOperation:
        return None
