"""What travels through the judge: a task on its way in, a result on its way out. Pure data, read by every file here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from rstar2_train.api.judge_limits import JudgeLimits

Status = Literal["ok", "error", "timeout", "memory", "output_limit", "killed", "invalid", "session_lost", "internal"]
"""ok: ended with exit status 0. error: any other end of its own. timeout, memory, output_limit: over that limit.
killed: it ended its sandbox each time it was run. invalid: never run, the request itself is wrong.
session_lost: a cell whose session is no more; it was not run, or not to its end, and never will be.
internal: not the snippet's fault, and no answer."""
STATUSES: tuple[Status, ...] = get_args(Status)

Verb = Literal["call", "open", "cell", "close"]
"""call: a program by itself. open: the first cell of a session. cell: a further one. close: the session's end."""

NO_ROOM = "no sandbox has room for another session\n"
"""With `internal`: a session could not begin now; nothing was run."""

MAX_CODE_BYTES = 1 << 20
MAX_STDIN_BYTES = 4 << 20
MAX_OUTPUT_BYTES = 8 << 20
"""The most that JudgeLimits takes."""
MAX_BATCH = 64
MAX_PENDING = 8192
"""Calls that an API process holds, unless it is told otherwise."""
SESSION_IDLE_SECONDS = 600
"""A session that nobody used for so long is ended, unless the worker is told otherwise."""
MAX_WAIT_SECONDS = 900.0
"""A call that nobody ran in that time is given up, unless the API is told otherwise."""
ALIVE_SECONDS = 10.0
"""How often, while there is no result, an empty line of a streamed answer says that the API lives."""
SILENT_SECONDS = 60.0
"""An API of which nothing came for so long counts as lost: its node may have died without a word."""
DRAIN_SECONDS = 25.0
"""How long a part that was told to end goes on with what it holds: below the 30 s that Kubernetes gives it."""


class JudgeUnavailable(Exception):
    """The judge did not answer in spite of retries: an infrastructure failure, never the snippet's."""


@dataclass(slots=True)
class CallResult:
    """How one call ended, as the trusted side saw it."""

    status: Status
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    """Exit status of the snippet's process, minus the signal number when a signal ended it; None: not known."""
    queue_seconds: float = 0.0
    """From the API's acceptance to the answer, less `run_seconds`."""
    run_seconds: float = 0.0
    """Wall time of the snippet's process."""
    session_lives: bool = False
    """Of a cell: whether its session goes on. One ends with a cell that ran out of time, memory or output."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready fields."""
        return asdict(self)


@dataclass(slots=True)
class QueuedCall:
    """One call in the queue."""

    id: str
    reply_to: str
    """Redis list that its API process reads."""
    code: str
    stdin: str
    wall_seconds: float
    memory_mib: int
    output_bytes: int
    processes: int
    deadline: float
    """Unix time after which nobody waits for it any more."""
    verb: Verb = "call"
    session: str = ""
    """Of a cell: its session."""

    @classmethod
    def build(
        cls,
        *,
        id: str,
        reply_to: str,
        code: str,
        stdin: str,
        limits: JudgeLimits,
        deadline: float,
        verb: Verb = "call",
        session: str = "",
    ) -> QueuedCall:
        """A task with the limits of a manifest."""
        return cls(
            id=id,
            reply_to=reply_to,
            code=code,
            stdin=stdin,
            wall_seconds=limits.wall_seconds,
            memory_mib=limits.memory_mib,
            output_bytes=limits.output_bytes,
            processes=limits.processes,
            deadline=deadline,
            verb=verb,
            session=session,
        )

    @classmethod
    def build_close(cls, session: str) -> QueuedCall:
        """The end of a session; nobody waits for an answer."""
        limits = JudgeLimits()
        none: dict[str, Any] = {"id": "", "reply_to": "", "code": "", "stdin": "", "deadline": 0.0}
        return cls.build(limits=limits, verb="close", session=session, **none)

    def encode(self) -> str:
        """One JSON array, in the order of the fields."""
        return json.dumps(
            [
                self.id,
                self.reply_to,
                self.code,
                self.stdin,
                self.wall_seconds,
                self.memory_mib,
                self.output_bytes,
                self.processes,
                self.deadline,
                self.verb,
                self.session,
            ]
        )

    @classmethod
    def decode(cls, data: bytes) -> QueuedCall:
        """Reverse of `encode`."""
        return cls(*json.loads(data))


def check_request(code: str, stdin: str) -> str | None:
    """Why a call cannot be run at all, or None. Such calls get status `invalid`."""
    for name, text, most in (("code", code, MAX_CODE_BYTES), ("stdin", stdin, MAX_STDIN_BYTES)):
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError as error:
            return f"{name} is not Unicode text: {error}"
        if size > most:
            return f"{name} is {size} bytes long; at most {most} are allowed"
    return None
