"""The checks that a sandbox must pass before it runs anything for a model.

One program, run twice in each lane: a known computation, and what must not be there: a host file, a way to a listener
on this machine, other processes, capabilities, writable files, traces of the call before. With isolation `none` only
the computation is checked: there is no wall to test.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from types import TracebackType

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.outcome import to_result
from rstar2_train.judge.sandbox.base import Bait, IsolationCheckFailed, Sandbox, SandboxError
from rstar2_train.judge.types import QueuedCall

CANARY_LIMITS = JudgeLimits(wall_seconds=60)

PROGRAM = """
import json, os, socket
def attempt(action):
    try:
        action()
        return "possible"
    except OSError:
        return "refused"
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
seen = {
    "sum of squares": sum(i * i for i in range(1000)),
    "process id": os.getpid(),
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    "effective capabilities": int(status["CapEff"], 16),
    "files in /tmp": os.listdir("/tmp"),
    "host file": "visible" if any(map(os.path.exists, MARKERS)) else "absent",
    "host network": sorted({attempt(lambda: socket.create_connection(a, 0.5).close()) for a in ADDRESSES}),
    "network interfaces": [name for _, name in socket.if_nameindex() if name != "lo"],
    "write to the root": attempt(lambda: open("/canary", "w")),
    "write to the library": attempt(lambda: open(os.__file__, "a")),
    "secrets in the environment": [name for name in os.environ if "RSTAR2" in name or "PASSWORD" in name],
}
open("/tmp/canary", "w").write("here")
print(json.dumps(seen))
"""

UNWALLED = """import json\nprint(json.dumps({"sum of squares": sum(i * i for i in range(1000))}))"""

EXPECTED: dict[str, object] = {
    "sum of squares": 332833500,
    "process id": 1,
    "processes": ["1"],
    "effective capabilities": 0,
    "files in /tmp": [],
    "host file": "absent",
    "host network": ["refused"],
    "network interfaces": [],
    "write to the root": "refused",
    "write to the library": "refused",
    "secrets in the environment": [],
}


class IsolationCheck:
    """Holds the bait: a file on this machine and a listening socket. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._marker = folder / "canary-bait"
        self._listener = socket.socket()

    def __enter__(self) -> IsolationCheck:
        self._marker.write_text("a sandbox must not see this file\n")
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(8)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._marker.unlink(missing_ok=True)
        self._listener.close()

    def program(self, bait: Bait | None) -> str:
        """The program with baits filled in: those of the sandbox's own place, or this machine's."""
        if bait is None:
            files = (str(self._marker), str(Path(__file__)), str(Path.home()))
            bait = Bait(files, (self._listener.getsockname(),))
        return f"MARKERS = {list(bait.files)!r}\nADDRESSES = {list(bait.addresses)!r}\n{PROGRAM}"

    async def check(self, sandbox: Sandbox, lane: str) -> None:
        """Raises SandboxError unless the lane passes twice; SandboxNotTight, with what it saw, if it saw something."""
        code = self.program(sandbox.bait) if sandbox.walled else UNWALLED
        expected = EXPECTED if sandbox.walled else {"sum of squares": EXPECTED["sum of squares"]}
        for _ in range(2):
            limits = CANARY_LIMITS
            task = QueuedCall.build(id="canary", reply_to="", code=code, stdin="", limits=limits, deadline=0)
            try:
                async with asyncio.timeout(limits.wall_seconds + 10):
                    outcome = await sandbox.lanes[lane].submit(task)
            except TimeoutError:
                raise SandboxError(f"canary of lane {lane}: no answer") from None
            result = to_result(outcome)
            if result.status != "ok":
                raise SandboxError(f"canary of lane {lane}: {result.status}: {result.stderr.strip()}")
            seen = json.loads(result.stdout)
            if seen != expected:
                wrong = {what: value for what, value in seen.items() if value != expected.get(what)}
                raise IsolationCheckFailed(
                    f"canary of lane {lane}: this sandbox is not tight, or miscalculates: {wrong}"
                )
