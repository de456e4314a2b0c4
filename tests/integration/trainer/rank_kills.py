"""Ranks that are killed with SIGKILL at a chosen point of a step or of a checkpoint."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch.utils._python_dispatch import TorchDispatchMode

from rstar2_train.trainer.actors import RankProcess

FILE_EVENTS = ("open", "os.rename", "os.mkdir")
KILLED = "killed"
"""File that a killed rank leaves next to the folder of the checkpoints."""


@dataclass(frozen=True)
class Point:
    """The point at which a rank dies: the `number`-th event of a call of a method of TrainerRank."""

    method: str
    event: Literal["start", "operation", "collective", "file", "end"]
    number: int = 1
    """Number of the tensor operation, collective or file of a checkpoint, from 1."""
    call: int = 1
    """Number of the call of the method in the attempt, from 1."""


def killed_at(point: Point, *, victim: int, checkpoints: Path) -> type[RankProcess]:
    """Return a process for RankActors that dies at `point` if its rank is `victim`.

    Its classes are local: the processes of Ray get their code, because they cannot import modules of tests.
    """
    method, event, number, nth_call, folder = point.method, point.event, point.number, point.call, str(checkpoints)
    file_events, name = FILE_EVENTS, KILLED

    def kill() -> None:
        Path(folder).with_name(name).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    class Killer(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.left = number
            sys.addaudithook(self.on_audit)

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if event == "operation" or (event == "collective" and str(function).startswith("c10d.")):
                self.count()
            return function(*args, **(kwargs or {}))

        def on_audit(self, audited: str, args: tuple[Any, ...]) -> None:
            if event == "file" and audited in file_events and folder in str(args[0]):
                self.count()

        def count(self) -> None:
            self.left -= 1
            if self.left == 0:
                kill()

    class KilledProcess(RankProcess):
        calls = 0

        def call(self, called: str, *args: Any) -> Any:
            if called != method or self._rank.rank != victim:
                return super().call(called, *args)
            self.calls += 1
            if self.calls != nth_call:
                return super().call(called, *args)
            if event == "start":
                kill()
            with Killer():
                result = super().call(called, *args)
            if event == "end":
                kill()
            return result

    return KilledProcess
