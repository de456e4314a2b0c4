"""Puts right what somebody else has changed of the operator's objects: finds it, and says when it may be written again.

`as_applied` compares only what the operator has set, for the API server fills in the rest, and amounts by their value.
What still looks different right after it was written is the server's own way to write it, and is left alone; whoever
changes an object again and again is answered once a minute: no mistake here and no other controller makes a loop.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from rstar2_operator import names
from rstar2_operator.cache import Key
from rstar2_operator.decide.diagnostics import Diagnosis
from rstar2_operator.observed import Object, ObservedJob, annotations_of, labels

KINDS = frozenset(
    {"ConfigMap", "Service", "ServiceAccount", "Deployment", "StatefulSet", "NetworkPolicy", "Role", "RoleBinding"}
)
"""Not claims, which their user may enlarge; not Jobs, which cannot be changed."""
EXACT = frozenset({"NetworkPolicy", "Role"})
"""Nothing may stand beside what was applied: it would open what must be closed."""
AGAIN_SECONDS = 60.0
POWERS = dict(zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True))
SUFFIXES = {
    **{letter: Decimal(10) ** power for letter, power in POWERS.items()},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}


def as_applied(there: Object, body: dict[str, Any]) -> bool:
    """Whether an object still holds what was applied. Pure."""
    exact = body["kind"] in EXACT
    if body["kind"] == "Deployment":  # how many is an autoscaler's to say
        body = {**body, "spec": {field: value for field, value in body["spec"].items() if field != "replicas"}}
    parts = body.keys() - {"apiVersion", "kind", "metadata", "status"}
    told = _holds(labels(there), body["metadata"].get("labels", {}), exact=False)
    return told and all(_holds(there.get(part), body[part], exact=exact) for part in parts)


def drifted(bodies: Iterable[dict[str, Any]], observed: ObservedJob) -> list[dict[str, Any]]:
    """Those that were applied like this, and are not like this any more. Pure."""
    out = []
    for body in bodies:
        there = observed.child(body["kind"], body["metadata"]["name"])
        if there is None or body["kind"] not in KINDS or there["metadata"].get("deletionTimestamp"):
            continue
        same = annotations_of(there).get(names.HASH) == body["metadata"]["annotations"][names.HASH]
        if same and not as_applied(there, body):
            out.append(body)
    return out


class DriftCorrections:
    """What was put right, and when: so that it is not done again and again."""

    def __init__(self) -> None:
        self._at: defaultdict[Key, dict[tuple[str, str], float]] = defaultdict(dict)
        self._as_it_is: defaultdict[Key, dict[tuple[str, str], str]] = defaultdict(dict)
        """Hash of what was applied, of objects that the API server writes in its own way."""
        self._refused: defaultdict[Key, dict[tuple[str, str], Diagnosis]] = defaultdict(dict)
        """What the API server said to the last try, of objects that could not be put right."""

    def due(
        self, key: Key, bodies: Iterable[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[Diagnosis], float | None]:
        """Those of `drifted` that may be written now; of the others why the last try was refused, where it was, and the
        seconds after which to come again for them.
        """
        now, due, told, waits = time.monotonic(), [], [], []
        for body in bodies:
            which = body["kind"], body["metadata"]["name"]
            if self._as_it_is[key].get(which) == body["metadata"]["annotations"][names.HASH]:
                continue
            wait = self._at[key].get(which, now - AGAIN_SECONDS) + AGAIN_SECONDS - now
            if wait > 0:
                waits.append(wait)
                if which in self._refused[key]:
                    told.append(self._refused[key][which])
            else:
                self._refused[key].pop(which, None)
                self._at[key][which] = now
                due.append(body)
        return due, told, min(waits, default=None)

    def refused(self, key: Key, body: dict[str, Any], why: Diagnosis) -> None:
        """An object could not be put right."""
        self._refused[key][body["kind"], body["metadata"]["name"]] = why

    def wrote(self, key: Key, body: dict[str, Any], there: Object) -> None:
        """An object was written, and `there` is what the API server made of it."""
        if body["kind"] in KINDS and not as_applied(there, body):
            self._as_it_is[key][body["kind"], body["metadata"]["name"]] = body["metadata"]["annotations"][names.HASH]

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._at.pop(key, None)
        self._as_it_is.pop(key, None)
        self._refused.pop(key, None)


def _holds(there: Any, ours: Any, *, exact: bool) -> bool:
    """Whether a value holds ours; what is empty is as good as left out."""
    if isinstance(ours, Mapping):
        if there is not None and not isinstance(there, Mapping):
            return False
        there = there or {}
        if exact and any(there[field] for field in there.keys() - ours.keys()):
            return False
        return all(_holds(there.get(field), value, exact=exact) for field, value in ours.items())
    if isinstance(ours, list):
        if there is not None and not isinstance(there, list):
            return False
        there = there or []
        named, wanted = _by_name(there), _by_name(ours)
        if not exact and wanted is not None and named is not None:
            return all(name in named and _holds(named[name], one, exact=exact) for name, one in wanted.items())
        return len(there) == len(ours) and all(_holds(a, b, exact=exact) for a, b in zip(there, ours, strict=True))
    if not ours or not there:
        return not ours and not there
    return bool(there == ours) or (_amount(ours) is not None and _amount(ours) == _amount(there))


def _by_name(things: list[Any]) -> dict[str, Any] | None:
    """The members of a list by name, where each has one of its own: others may have added some."""
    if not all(isinstance(one, Mapping) and one.get("name") for one in things):
        return None
    found = {one["name"]: one for one in things}
    return found if len(found) == len(things) else None


def _amount(value: Any) -> Decimal | None:
    """What "1", 1, "1000m" and "0.5Gi" are worth; None of anything else."""
    text = str(value)
    suffix = next((end for end in (text[-2:], text[-1:]) if end in SUFFIXES), "")
    try:
        return Decimal(text[: len(text) - len(suffix)]) * SUFFIXES.get(suffix, Decimal(1))
    except InvalidOperation:
        return None
