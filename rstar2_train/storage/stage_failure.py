"""The failure of a stage whose bucket does not take its files. Pure."""

from __future__ import annotations

from rstar2_train.api.contracts import StageFailed
from rstar2_train.storage.publication import Fenced
from rstar2_train.storage.store import AccessDenied, StorageError, StorageUnavailable


def stage_failure(error: StorageError, files: str) -> StageFailed:
    """Return the failure that an error causes while a stage runs. `files`: the files in words, such as `the weights`.

    Denied access is retried: the keys were valid when the attempt started, so they have expired, and the pods of the
    next attempt have those of the Secret.
    """
    if isinstance(error, Fenced):
        return StageFailed("StaleAttempt", str(error), retryable=False)
    if isinstance(error, StorageUnavailable | AccessDenied):
        message = f"{files} cannot be written to spec.storage.url: {error}"
        return StageFailed("StorageUnavailable", message, retryable=True)
    return StageFailed("BadConfiguration", f"spec.storage.url: {error}", retryable=False)
