"""The operator's log: text, or JSON with job, namespace and stage as fields.

`reconciling` names the job of a round; each line that is logged during the round has it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from contextvars import ContextVar

_fields: ContextVar[dict[str, str] | None] = ContextVar("fields", default=None)
"""Fields of the lines of the current task."""


@contextlib.contextmanager
def reconciling(namespace: str, job: str) -> Iterator[None]:
    """Add the job to each line until the end of the block."""
    token = _fields.set({"namespace": namespace, "job": job})
    try:
        yield
    finally:
        _fields.reset(token)


def at_stage(stage: str | None) -> None:
    """Add the stage to the lines of the block of `reconciling`."""
    if (fields := _fields.get()) is not None and stage:
        fields["stage"] = stage


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            **(_fields.get() or {}),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(log_format: str) -> None:
    """Log to stderr. `log_format`: json or text."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it logs every event
