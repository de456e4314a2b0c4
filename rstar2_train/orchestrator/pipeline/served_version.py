"""The newest weight version that the engines serve, as the number of its step.

The publisher advances it; the generator waits for it before it starts a batch.
"""

from __future__ import annotations

import asyncio


class ServedVersion:
    """The number of finished steps of the weights that the engines serve."""

    def __init__(self) -> None:
        self.step = -1
        """-1 before the first push."""
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def advance(self, step: int) -> None:
        """Record that the engines serve the weights of `step`."""
        self.step = step
        self._notify()

    def fail(self, error: BaseException) -> None:
        """Raise `error` in every current and later wait: no version follows."""
        self._error = error
        self._notify()

    async def wait_for(self, step: int) -> None:
        """Wait until the engines serve the weights of `step` or later ones. Raises the error of `fail`."""
        while self.step < step:
            if self._error is not None:
                raise self._error
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
