"""The failure of a stage that an error of its bucket causes. Pure."""

from __future__ import annotations

from rstar2_train.api.contracts import StageFailed
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.store import AccessDenied, StorageError, StorageUnavailable


def stage_failure(error: StorageError, effect: str) -> StageFailed:
    """Return the failure that an error causes while a stage runs. `effect`: such as `the weights cannot be written to`.

    Denied access is retried: the keys were valid when the attempt started, so they have expired, and the pods of the
    next attempt have those of the Secret.
    """
    if isinstance(error, Fenced):
        return StageFailed("StaleAttempt", str(error), retryable=False)
    if isinstance(error, StorageUnavailable | AccessDenied):
        return StageFailed("StorageUnavailable", f"{effect} spec.storage.url: {error}", retryable=True)
    return StageFailed("BadConfiguration", f"spec.storage.url: {error}", retryable=False)
