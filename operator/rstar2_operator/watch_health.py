"""Which watches work. A namespace with a failing watch is named in the log and in a metric; the others are served."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kubernetes.aio.client.exceptions import ApiException

log = logging.getLogger(__name__)


def cause_of(error: Exception) -> str:
    """Return the cause of a failed request in one line."""
    if isinstance(error, ApiException):
        return f"{error.status} {error.reason}"
    return str(error) or type(error).__name__


def described(kind: str, namespace: str) -> str:
    """Return a watch as text."""
    return f"{kind} in namespace {namespace}" if namespace else kind


OPTIONAL = frozenset({"Node"})
"""Kinds without which jobs are served: only the faults of nodes stay unknown."""


class WatchHealth:
    """The failing watches of each namespace (empty: all)."""

    def __init__(self, changed: Callable[[str, int], None] = lambda namespace, failing: None) -> None:
        """`changed` is called with a namespace and the number of its failing watches, without optional ones."""
        self._changed = changed
        self._failing: dict[str, set[str]] = {}

    def failed(self, namespace: str, kind: str, cause: str) -> bool:
        """Record that a watch has failed. Return whether it worked before."""
        failing = self._failing.setdefault(namespace, set())
        worked, served = kind not in failing, not failing - OPTIONAL
        failing.add(kind)
        if served and kind not in OPTIONAL:
            where = f"namespace {namespace}" if namespace else "the cluster"
            log.error("%s is not served: %s cannot be watched (%s). Other namespaces are.", where, kind, cause)
        self._changed(namespace, len(failing - OPTIONAL))
        return worked

    def works(self, namespace: str, kind: str) -> None:
        """Record that a watch has started, or works again."""
        failing = self._failing.get(namespace, set())
        if kind not in failing:
            return
        failing.discard(kind)
        if kind not in OPTIONAL and not failing - OPTIONAL:
            log.info("%s is served again", f"namespace {namespace}" if namespace else "the cluster")
        self._changed(namespace, len(failing - OPTIONAL))
