"""The data that crosses the judge's processes: a queued call, its result, and the limits of both. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from rstar2_train.api.judge_limits import MAX_STDIN_BYTES, JudgeLimits

Status = Literal["ok", "error", "timeout", "memory", "output_limit", "killed", "invalid", "session_lost", "internal"]
"""ok: the process exited with status 0. error: it ended in any other way by itself. timeout, memory, output_limit: it
exceeded that limit. killed: each sandbox that ran it ended. invalid: the request is invalid, so it was not run.
session_lost: the session of the cell has ended; the cell was not run, or not to its end, and must not be sent again.
internal: an infrastructure failure; there is no result."""

Verb = Literal["call", "open", "cell", "close", "code_judge", "script"]
"""call: a program without a session, which runs like a notebook cell. script: the same, as `python FILE` runs it: no
value is printed. code_judge: a script as code-judge runs it: output above the limit is cut, and the time limit adds a
last line. open: the first cell of a session. cell: a further cell. close: end the session."""

SESSION_VERBS: tuple[Verb, ...] = ("open", "cell", "close")

NO_FREE_SLOT = "no sandbox has a free slot for another session: close a session, or retry later\n"
"""stderr of an `internal` result: no slot was free for a new session, and nothing was run."""

MAX_CODE_BYTES = 1 << 20
MAX_BATCH = 64
MAX_PENDING = 8192
"""Default limit of calls that an API process holds."""
SESSION_IDLE_SECONDS = 600
"""Default time without a cell after which a session is closed."""
MAX_WAIT_SECONDS = 900.0
"""Default time in the queue after which a call gets status `internal`."""
SCRIPT_SECONDS = 4.0
"""Default time limit of a program on the routes of code-judge."""
ALIVE_SECONDS = 10.0
"""Interval of empty lines in a streamed response while no result is ready: they show that the API is alive."""
SILENT_SECONDS = 60.0
"""Time without data after which a client treats the API as lost: its node may have failed."""
DRAIN_SECONDS = 25.0
"""Grace period for calls in flight after SIGTERM; less than the 30 s of a pod."""


class JudgeUnavailable(Exception):
    """The judge did not answer in spite of retries: an infrastructure failure, never the snippet's."""


@dataclass(frozen=True, slots=True)
class ReturnedFile:
    """A file that a call wrote into /tmp/out."""

    name: str
    size: int
    """Bytes."""
    content: str | None
    """Content in base64; None: above the limit of the call."""


@dataclass(slots=True)
class CallResult:
    """The result of one call, as observed by the trusted side."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(use_attribute_docstrings=True)
    """The docstrings of the fields are their descriptions on the OpenAPI page."""

    status: Status
    """`ok`: exit status 0. `error`: any other end of the process. `timeout`, `memory`, `output_limit`: it exceeded that
    limit. `killed`: each sandbox that ran it ended. `invalid`: the request is invalid. `session_lost`: the session of
    the cell has ended. `internal`: an infrastructure failure; retry."""
    stdout: str = ""
    """Standard output, up to the limit `outputBytes`."""
    stderr: str = ""
    """Standard error, up to the limit `outputBytes`, or a message of the judge."""
    exit_code: int | None = None
    """Exit status of the process, or minus the number of the signal that ended it; null: unknown."""
    queue_seconds: float = 0.0
    """Time from the API's acceptance to its answer, less `run_seconds`."""
    run_seconds: float = 0.0
    """Wall-clock time of the process."""
    session_lives: bool = False
    """Of a cell: whether its session continues. A cell that exceeds a limit ends it."""
    files: list[ReturnedFile] = field(default_factory=list)
    """Files that the program wrote into /tmp/out, if `limits.fileBytes` asks for them. At most 16."""

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> CallResult:
        """Reverse `to_dict`. A judge from before `files` sends none."""
        return cls(**fields | {"files": [ReturnedFile(**file) for file in fields.get("files", ())]})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self)


@dataclass(slots=True)
class QueuedCall:
    """One call in the queue."""

    id: str
    reply_to: str
    """Redis list from which its API process reads the result."""
    code: str
    stdin: str
    limits: JudgeLimits
    deadline: float
    """Unix time after which the result is no longer needed."""
    verb: Verb = "call"
    session: str = ""
    """Of a cell: the id of its session."""

    @classmethod
    def build_close(cls, session: str) -> QueuedCall:
        """Return the end of an idle session. No process reads its result."""
        return cls("", "", "", "", JudgeLimits(), deadline=0.0, verb="close", session=session)

    @property
    def in_session(self) -> bool:
        """Whether it belongs to a session, so that it must run at most once."""
        return self.verb in SESSION_VERBS

    @property
    def file_bytes(self) -> int:
        """Bytes of the files that it returns; 0: none."""
        return 0 if self.in_session else self.limits.file_bytes

    def encode(self) -> dict[str, bytes]:
        """Return the fields of its entry in a stream. Large texts are no JSON, which is slow."""
        limits = self.limits.model_dump(mode="json", by_alias=True)
        head = [self.id, self.reply_to, limits, self.deadline, self.verb, self.session]
        return {"call": json.dumps(head).encode(), "code": self.code.encode(), "stdin": self.stdin.encode()}

    @classmethod
    def decode(cls, fields: Mapping[bytes, bytes]) -> QueuedCall:
        """Reverse `encode`."""
        id, reply_to, limits, deadline, verb, session = json.loads(fields[b"call"])
        code, stdin = fields[b"code"].decode(), fields[b"stdin"].decode()
        return cls(id, reply_to, code, stdin, JudgeLimits.model_validate(limits), deadline, verb, session)


def check_request(code: str, stdin: str) -> str | None:
    """Return why a call cannot be run, or None. Such a call gets status `invalid` with this text."""
    for name, text, limit in (("code", code, MAX_CODE_BYTES), ("stdin", stdin, MAX_STDIN_BYTES)):
        try:
            size = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError as error:
            return f"{name} is not Unicode text: {error}"
        if size > limit:
            return f"{name} is {size} bytes long; at most {limit} are allowed"
    return None
