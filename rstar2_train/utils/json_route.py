"""Routes of FastAPI whose bodies may be large: no body holds the event loop (`json_steps.py`)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from rstar2_train.utils.json_steps import MAX_FIELDS, SMALL_BYTES, JsonTooLarge, load_json


class JsonRequest(Request):
    """A request whose large body is collected without copies and parsed in a thread."""

    max_fields: int

    async def body(self) -> bytes:
        """Return the body; a large one as a bytearray, because its copy takes too long."""
        if not hasattr(self, "_body"):
            body = bytearray()
            async for chunk in self.stream():
                body += chunk
            self._body: Any = body if len(body) > SMALL_BYTES else bytes(body)
        return self._body

    async def json(self) -> Any:
        """Return the value. Raises JSONDecodeError, UnicodeDecodeError, or HTTPException for a body above a limit."""
        try:
            return await load_json(await self.body(), max_fields=self.max_fields)
        except JsonTooLarge as error:
            raise HTTPException(413, str(error)) from None


class JsonRoute(APIRoute):
    """A route with JsonRequest."""

    max_fields: ClassVar[int] = MAX_FIELDS
    """The most fields of an object in a large body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            json_request = JsonRequest(request.scope, request.receive)
            json_request.max_fields = self.max_fields
            return await handle(json_request)

        return handle_request
