"""The isolation check: the self-test that each lane of a sandbox must pass before it takes calls.

One program runs twice in each lane. It checks a known computation, and that it cannot reach a host file, a listener on
this machine, other processes, capabilities, writable system files, or files of the previous call. With isolation `none`
it checks the computation only.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from types import TracebackType

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.judge.process_exit import to_result
from rstar2_train.judge.sandbox.base import ForbiddenTargets, IsolationCheckFailed, Sandbox, SandboxError
from rstar2_train.judge.types import QueuedCall

LIMITS = JudgeLimits(wall_seconds=60)

PROGRAM = """
import json, os, socket
def attempt(action):
    try:
        action()
        return "possible"
    except OSError:
        return "refused"
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
observed = {
    "sum of squares": sum(i * i for i in range(1000)),
    "process id": os.getpid(),
    "processes": sorted(name for name in os.listdir("/proc") if name.isdigit()),
    "effective capabilities": int(status["CapEff"], 16),
    "files in /tmp": os.listdir("/tmp"),
    "host file": "visible" if any(map(os.path.exists, FILES)) else "absent",
    "host network": sorted({attempt(lambda: socket.create_connection(a, 0.5).close()) for a in ADDRESSES}),
    "network interfaces": [name for _, name in socket.if_nameindex() if name != "lo"],
    "write to the root": attempt(lambda: open("/isolation-check", "w")),
    "write to the library": attempt(lambda: open(os.__file__, "a")),
    "secrets in the environment": [name for name in os.environ if "RSTAR2" in name or "PASSWORD" in name],
}
open("/tmp/isolation-check", "w").write("left by the isolation check")
print(json.dumps(observed))
"""

COMPUTATION_PROGRAM = """import json\nprint(json.dumps({"sum of squares": sum(i * i for i in range(1000))}))"""

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
    """Creates a file and a listener on this machine, which sandboxes must not reach. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "isolation-check"
        self._listener = socket.socket()

    def __enter__(self) -> IsolationCheck:
        self._file.write_text("a sandbox must not see this file\n")
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(8)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.unlink(missing_ok=True)
        self._listener.close()

    def program(self, forbidden: ForbiddenTargets | None) -> str:
        """Return the program for the given targets; None: those of this machine."""
        if forbidden is None:
            files = (str(self._file), str(Path(__file__)), str(Path.home()))
            forbidden = ForbiddenTargets(files, (self._listener.getsockname(),))
        return f"FILES = {list(forbidden.files)!r}\nADDRESSES = {list(forbidden.addresses)!r}\n{PROGRAM}"

    async def check(self, sandbox: Sandbox, lane: str) -> None:
        """Run the check twice in a lane.

        Raises IsolationCheckFailed, with the deviations, if an observation is wrong, and SandboxError if the program
        fails.
        """
        code = self.program(sandbox.forbidden) if sandbox.isolated else COMPUTATION_PROGRAM
        expected = EXPECTED if sandbox.isolated else {"sum of squares": EXPECTED["sum of squares"]}
        call = QueuedCall("isolation-check", "", code, "", LIMITS, deadline=0)
        for _ in range(2):
            try:
                async with asyncio.timeout(LIMITS.wall_seconds + 10):
                    process_exit = await sandbox.lanes[lane].submit(call)
            except TimeoutError:
                raise SandboxError(f"Isolation check of lane {lane}: no answer in time.") from None
            result = to_result(process_exit)
            if result.status != "ok":
                raise SandboxError(f"Isolation check of lane {lane}: {result.status}: {result.stderr.strip()}")
            observed = json.loads(result.stdout)
            if observed != expected:
                wrong = {name: value for name, value in observed.items() if value != expected.get(name)}
                raise IsolationCheckFailed(
                    f"Isolation check of lane {lane} failed; the sandbox is not isolated or computes wrongly: {wrong}"
                )
