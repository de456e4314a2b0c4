"""A call while a worker's pool holds it: its future, and the decision whether it runs again.

`pool` puts each QueuedCall into a RunningCall. When the process or its sandbox ends, the methods below return the final
result, or None if the call must run again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rstar2_train.judge.process_exit import ProcessExit, to_result
from rstar2_train.judge.types import CallResult, QueuedCall

MAX_SANDBOX_DEATHS = 3
"""Sandboxes that must end while they run a call before the call gets status `killed`."""
MAX_SETUP_FAILURES = 3
"""Failed preparations of the process before the call gets status `internal`."""
TOO_MUCH_MEMORY = "its processes together took too much memory\n"
"""stderr of a call whose sandbox was stopped because it took too much memory."""


@dataclass(slots=True, eq=False)
class RunningCall:
    """A call that waits in the pool or runs in a sandbox."""

    call: QueuedCall
    lane: str
    future: asyncio.Future[CallResult]
    sandbox_deaths: int = 0
    setup_failures: int = 0
    timer: asyncio.TimerHandle | None = field(default=None)
    """Fires when the sandbox does not answer in time."""

    def answer(self, result: CallResult) -> None:
        """Set the result, unless the future is done or cancelled."""
        if not self.future.done():
            self.future.set_result(result)

    def stop_timer(self) -> None:
        """Cancel the timer, if it was started."""
        if self.timer is not None:
            self.timer.cancel()

    def result_of_exit(self, process_exit: ProcessExit) -> CallResult | None:
        """Return the result of the ended process, or None if its setup failed and may be retried."""
        result = to_result(process_exit)
        if result.status != "internal":
            return result
        self.setup_failures += 1
        return result if self.setup_failures >= MAX_SETUP_FAILURES else None

    def result_of_sandbox_death(
        self, *, was_running: bool, over_memory: bool, run_seconds: float = 0.0
    ) -> CallResult | None:
        """Return the result if the call is to blame for the end of its sandbox, or None if it must run again.

        `was_running`: the sandbox ran this call, and not one before it. `over_memory`: the sandbox was stopped because
        this call took too much memory. `run_seconds`: how long it ran the call.
        """
        self.sandbox_deaths += was_running
        if was_running and over_memory:
            return CallResult("memory", stderr=TOO_MUCH_MEMORY, run_seconds=run_seconds)
        if self.sandbox_deaths >= MAX_SANDBOX_DEATHS:
            message = "the call ended its sandbox each time it was run\n"
            return CallResult("killed", stderr=message, run_seconds=run_seconds)
        return None
