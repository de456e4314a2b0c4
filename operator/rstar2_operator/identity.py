"""The parts of an object by which the operator finds and reads it and its pods. An admission webhook may change them.

Without its labels an object is not delivered by the watches; the state of a renamed container is not read. Other
changes, such as another registry or an injected container, do no harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rstar2_operator import names
from rstar2_operator.observed import Object, labels

REPEAT_SECONDS = 60.0
"""Minimum time between two creations of an object that a webhook changes."""
OWN_LABELS = (names.MANAGED_BY, names.JOB_LABEL, names.ROLE_LABEL, names.STAGE_LABEL, names.ATTEMPT_LABEL)
COUNTS = ("parallelism", "completions", "completionMode")
"""Fields of a batch Job that decide the number and the indices of its pods."""


class Refused(Exception):
    """The operator does not use an object; the message states why."""


class Mutated(Refused):
    """An admission webhook has changed the identity of an object."""

    def __init__(self, message: str, unusable: Object | None) -> None:
        """`unusable`: the object, if it creates pods and is new; it must be deleted."""
        super().__init__(message)
        self.unusable = unusable


class MutatedObjects:
    """The objects of one job that a webhook has changed. They are created again only once per minute."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, str], tuple[float, Mutated]] = {}
        """Kind and name -> monotonic time until which the error counts, and the error."""

    @contextmanager
    def guard(self, body: Object) -> Iterator[None]:
        """Create an object in this context. Raises the last error again instead, if it is a recent one."""
        which = body["kind"], body["metadata"]["name"]
        until, error = self._errors.get(which, (0.0, None))
        if error is not None and time.monotonic() < until:
            raise error.with_traceback(None)
        try:
            yield
        except Mutated as refusal:
            self._errors[which] = time.monotonic() + REPEAT_SECONDS, refusal
            raise


def identity_changes(body: dict[str, Any], live: Object) -> list[str]:
    """Return what differs between an object and its stored form, as text. Pure."""
    return [*_labels(body, live, "label"), *_workload(body, live)]


def _labels(body: Object, live: Object, part: str) -> Iterator[str]:
    own, stored = labels(body), labels(live)
    yield from (f"{part} {name}" for name in OWN_LABELS if name in own and own[name] != stored.get(name))


def _workload(body: dict[str, Any], live: Object) -> Iterator[str]:
    """Yield the changes of a pod template, and of the number of pods."""
    spec, stored = body.get("spec") or {}, live.get("spec") or {}
    template, stored_template = spec.get("template"), stored.get("template")
    if not template or not stored_template:
        return
    yield from _labels(template, {"metadata": {}, **stored_template}, "label of the pods")
    yield from (name for name in COUNTS if name in spec and spec[name] != stored.get(name))
    pod, stored_pod = template.get("spec") or {}, stored_template.get("spec") or {}
    if "restartPolicy" in pod and pod["restartPolicy"] != stored_pod.get("restartPolicy"):
        yield "restartPolicy"
    kept = {container["name"] for container in stored_pod.get("containers") or ()}
    yield from (f"container {own['name']}" for own in pod.get("containers") or () if own["name"] not in kept)
