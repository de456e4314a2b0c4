"""How much of the layers torch really compiles: its graphs, and the functions that it gave up.

Torch stops to compile a function after eight graphs, with a line in the log of the rank, which no user sees.
"""

from __future__ import annotations

import logging

from torch._dynamo.utils import counters

_GIVEN_UP = "torch._dynamo hit config."


class CompilationWatch(logging.Handler):
    """Counts the graphs of this process, and the functions that torch no longer compiles."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.given_up = 0
        logging.getLogger("torch._dynamo").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line of torch about a function that it gives up."""
        self.given_up += record.getMessage().startswith(_GIVEN_UP)

    @property
    def graphs(self) -> int:
        """Compiled graphs."""
        return counters["stats"]["unique_graphs"]

    def close(self) -> None:
        """Stop to count."""
        logging.getLogger("torch._dynamo").removeHandler(self)
        super().close()
