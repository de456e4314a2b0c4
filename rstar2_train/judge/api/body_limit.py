"""Limits the bodies of requests, so that no client can fill the API's memory with one request.

A middleware of `app`. The limits follow from those of code and stdin in `types`: JSON needs up to six bytes per byte.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException

from rstar2_train.api.judge_limits import MAX_STDIN_BYTES
from rstar2_train.judge.types import MAX_BATCH, MAX_CODE_BYTES
from rstar2_train.utils.auth import Application, Receive, Scope, Send

MAX_BODY_BYTES = 32 << 20
"""Body of one call: six times the limits of code and stdin, and its other fields."""
MAX_BATCH_BODY_BYTES = MAX_BATCH * (MAX_CODE_BYTES + MAX_STDIN_BYTES)
"""Body of a batch, in bytes. JudgeClient sends less (`MAX_CHARACTERS`)."""


class BodyLimit:
    """ASGI middleware: the application's read of a body above the limit raises HTTPException with status 413.

    A body with a declared length is rejected before it is read; a chunked one after the limit.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        limit = MAX_BATCH_BODY_BYTES if scope["path"].endswith("batch") else MAX_BODY_BYTES
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        received = int(declared) if int(declared) > limit else 0

        async def receive_limited() -> Scope:
            nonlocal received
            if received <= limit:
                message = await receive()
                received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, too_large(limit))
            return message

        await self._app(scope, receive_limited, send)


def too_large(limit: int) -> str:
    """Return the reason of a rejection. `limit`: bytes."""
    return (
        f"The body is larger than {limit >> 20} MiB, the limit of this route. The code of a call may have "
        f"{MAX_CODE_BYTES >> 20} MiB and its stdin {MAX_STDIN_BYTES >> 20} MiB. Send less data, or fewer calls per "
        "request."
    )
