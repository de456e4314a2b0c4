"""Which watches work. A namespace with a failing watch is named in the log and in a metric; the others are served."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kubernetes.aio.client.exceptions import ApiException

log = logging.getLogger(__name__)

SHOWN_LENGTH = 200
"""Maximum length of a cause that is not the API server's."""
FAILING_SECONDS = 60.0
"""Seconds of failures after which a job's status has them; before, only the log and the metrics."""


def cause_of(error: Exception) -> str:
    """Return what the API server wrote about a failed request; of another error its own text."""
    if not isinstance(error, ApiException):
        return str(error) or type(error).__name__
    try:
        answer = json.loads(error.body or "")
        return f"{answer['reason']}: {answer['message']}"
    except (ValueError, KeyError, TypeError):
        page = " ".join(str(error.body or "").split())[:SHOWN_LENGTH]  # of a proxy
        return f"{error.status} {error.reason}: {page}".rstrip(": ")


def described(kind: str, namespace: str) -> str:
    """Return a watch as text."""
    return f"{kind} in namespace {namespace}" if namespace else kind


OPTIONAL = frozenset({"Node"})
"""Kinds without which jobs are served: only the faults of nodes stay unknown."""


@dataclass(slots=True)
class _Failure:
    since: float
    """Monotonic time."""
    cause: str = ""
    lasts: bool = False


class WatchHealth:
    """The failing watches of each namespace (empty: all)."""

    def __init__(
        self,
        changed: Callable[[str, int], None] = lambda namespace, failing: None,
        lasting_changed: Callable[[str], None] = lambda namespace: None,
    ) -> None:
        """`changed` is called with a namespace and the number of its failing watches, without optional ones.

        `lasting_changed`: with a namespace, if the result of `lasting` has changed.
        """
        self._changed = changed
        self._lasting_changed = lasting_changed
        self._failing: dict[str, dict[str, _Failure]] = {}

    def failed(self, namespace: str, kind: str, cause: str) -> bool:
        """Record that a watch has failed. Return whether it worked before."""
        failing = self._failing.setdefault(namespace, {})
        worked, served = kind not in failing, not failing.keys() - OPTIONAL
        failure = failing.setdefault(kind, _Failure(time.monotonic()))
        failure.cause = cause
        if served and kind not in OPTIONAL:
            where = f"namespace {namespace}" if namespace else "the cluster"
            log.error("%s is not served: %s cannot be watched (%s). Other namespaces are.", where, kind, cause)
        self._changed(namespace, len(failing.keys() - OPTIONAL))
        if not failure.lasts and kind not in OPTIONAL and time.monotonic() >= failure.since + FAILING_SECONDS:
            failure.lasts = True
            self._lasting_changed(namespace)
        return worked

    def works(self, namespace: str, kind: str) -> None:
        """Record that a watch has started, or works again."""
        failing = self._failing.get(namespace, {})
        if (failure := failing.pop(kind, None)) is None:
            return
        if kind not in OPTIONAL and not failing.keys() - OPTIONAL:
            log.info("%s is served again", f"namespace {namespace}" if namespace else "the cluster")
        self._changed(namespace, len(failing.keys() - OPTIONAL))
        if failure.lasts:
            self._lasting_changed(namespace)

    def lasting(self, namespace: str) -> list[tuple[str, str]]:
        """Return (kind, cause) of the watches of a namespace that fail for FAILING_SECONDS, without optional ones."""
        of_namespace = {**self._failing.get("", {}), **self._failing.get(namespace, {})}
        return sorted((kind, failure.cause) for kind, failure in of_namespace.items() if failure.lasts)
