"""A clock that only a test moves."""


class Clock:
    """The monotonic clock of this process and of its event loops: no slow machine ends a limit."""

    def __init__(self) -> None:
        self.now = 1000.0
