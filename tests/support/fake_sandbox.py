"""A sandbox without a process, whose memory and lanes a test sets."""

from rstar2_train.judge.sandbox.base import Lane, Sandbox


class FakeSandbox(Sandbox):
    """A sandbox that counts its requests."""

    def __init__(self, *lanes: str) -> None:
        super().__init__(lanes or ("bare",), id="fake", isolated=False)
        self.held_bytes: int | None = None
        """Result of `memory_bytes`."""
        self.send_error: Exception | None = None
        """Error that `send` raises."""
        self.sent = 0

    async def start(self) -> None:
        """Open all lanes."""
        for lane in self.lanes.values():
            lane.ready = lane.admitted = True

    def send(self, lane: Lane, data: bytes) -> None:
        """Count the requests, or raise `send_error`."""
        if self.send_error is not None:
            raise self.send_error
        self.sent += 1

    def disconnect(self) -> None:
        """Nothing to close."""

    def diagnostics(self) -> str:
        """Return a fixed text."""
        return "a fake sandbox"

    def memory_bytes(self) -> int | None:
        """Return `held_bytes`."""
        return self.held_bytes

    async def stop(self, *, failed_check: bool = False) -> None:
        """Nothing to stop."""
