"""A proxy between a command, or a stage, and the engine: it records each request and can hold or truncate it.

For tests of the samples that are generated before and after a kill. `write_sums` writes four problems that the
memorising model answers with 42, which is wrong for the third one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from aiohttp import web

from rstar2_train.api.contracts import AttemptRecord, write_model
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.validation import check
from rstar2_train.inference.turn_wire import decode_request, encode_request
from rstar2_train.rollout.seeds import derive_seed
from tests.support.engine import QUESTION, Engine

GOLD = ["42", "42", "41", "42"]
SAMPLES = 4
HELD = (2, 3)
"""Numbers of the samples that do not finish while the proxy holds requests."""
TURNS = 2

TurnKey = tuple[str, int, int]
"""Problem, sample, turn."""


class EngineProxy:
    """A server in front of the engine; it identifies each request by its seed."""

    def __init__(self, engine: Engine, turn_of_seed: dict[int, TurnKey]) -> None:
        self.url = ""
        self.requests: list[TurnKey] = []
        self.holding = asyncio.Event()
        """While it is set, the last turns of the HELD samples wait."""
        self.truncated: set[tuple[str, int]] = set()
        """Samples (problem, number) whose last turn is truncated to three tokens, which makes them wrong."""
        self.released = asyncio.Event()
        self._engine = engine
        self._turn_of_seed = turn_of_seed

    async def handle(self, request: web.Request) -> web.Response:
        """Forward a request to the engine."""
        body = await request.read()
        if request.path in ("/v1/completions", "/rstar2/generate"):
            is_binary = request.path == "/rstar2/generate"
            fields, prompt = decode_request(body) if is_binary else (json.loads(body), [])
            key = self._turn_of_seed[fields["seed"]]
            self.requests.append(key)
            problem, sample, turn = key
            if self.holding.is_set() and sample in HELD and turn == TURNS - 1:
                await self.released.wait()
                raise web.HTTPServiceUnavailable
            if (problem, sample) in self.truncated and turn == TURNS - 1:
                fields = fields | {"max_tokens": 3}
                body = encode_request(fields, prompt) if is_binary else json.dumps(fields).encode()
        headers = {"Authorization": request.headers.get("Authorization", ""), "Content-Type": "application/json"}
        url = self._engine.url + request.path_qs
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, data=body, headers=headers) as reply,
        ):
            return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)


def turns_by_seed(name: str, problems: Iterable[str]) -> dict[int, TurnKey]:
    """Return the turn of each request's seed. `name` follows the job's seed, 0, in all seeds."""
    return {
        derive_seed(0, name, problem, sample, turn): (problem, sample, turn)
        for problem in problems
        for sample in range(SAMPLES)
        for turn in range(TURNS)
    }


@asynccontextmanager
async def proxied(engine: Engine, turn_of_seed: dict[int, TurnKey]) -> AsyncIterator[EngineProxy]:
    """Start a proxy; it listens at `url`."""
    proxy = EngineProxy(engine, turn_of_seed)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        proxy.released.set()
        await runner.cleanup()


def write_sums(folder: Path, *, golds: Iterable[str] = GOLD) -> Path:
    """Write the file of problems; their ids are their numbers."""
    rows = [{"id": number, "problem": QUESTION, "answer": gold} for number, gold in enumerate(golds)]
    file = folder / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


async def start(engine: Engine, folder: Path, module: str, *arguments: str | Path) -> asyncio.subprocess.Process:
    """Start `python -m module` in `folder`, with the engine's token."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"RSTAR2_ENGINE_TOKEN": engine.token},
        cwd=folder,  # MLflow writes the artifacts of a sqlite file into the current folder
        start_new_session=True,
    )


def write_job(manifest: dict[str, Any], folder: Path) -> JobState:
    """Create the state directory of a job."""
    job, problems = check(manifest)
    assert job is not None, problems
    state = JobState(folder)
    write_model(state.job_file, job)
    return state


async def start_attempt(
    engine: Engine, state: JobState, stage: str, *, attempt: int, url: str, judge: str
) -> asyncio.subprocess.Process:
    """Start the orchestrator of an attempt, as `rstar2 run` does. `url`: of the engine or of a proxy."""
    write_model(state.stage(stage).attempt_file, AttemptRecord(attempt=attempt))
    return await start(
        engine, state.root, "rstar2_train.orchestrator", "--state", state.root, "--stage", stage,
        "--attempt", str(attempt), "--engine", url, "--judge", judge,
    )  # fmt: skip


async def finish(process: asyncio.subprocess.Process, *, code: int = 0) -> str:
    """Wait for a process that must exit with `code`; return its output."""
    output = (await process.communicate())[0].decode()
    assert process.returncode == code, output
    return output


async def kill_at(process: asyncio.subprocess.Process, files: str, *, folder: Path, samples: int) -> None:
    """Kill the process with SIGKILL when `samples` samples are on disk, while it and its children run."""
    await _wait_for_samples(process, files, folder=folder, samples=samples)
    process.kill()
    await process.communicate()


async def stop_at(process: asyncio.subprocess.Process, files: str, *, folder: Path, samples: int) -> None:
    """Send SIGTERM to the process when `samples` samples are on disk."""
    await _wait_for_samples(process, files, folder=folder, samples=samples)
    process.terminate()


async def _wait_for_samples(process: asyncio.subprocess.Process, files: str, *, folder: Path, samples: int) -> None:
    while len(saved(folder, files)) < samples:
        assert process.returncode is None, (await process.communicate())[0].decode()
        await asyncio.sleep(0.1)
    assert running(folder)


def saved(folder: Path, files: str) -> list[tuple[str, int]]:
    """Return the samples on disk, in the files that match a pattern."""
    texts = [file.read_text() for file in folder.glob(files)]
    lines = [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]  # the last one may be torn
    rows = [json.loads(line)["scored"] for line in lines]
    return [(row["prompt_id"], row["sample"]) for row in rows]


def running(folder: Path) -> list[list[str]]:
    """Return the command lines of the processes that work in `folder`."""
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "status"])
        if any(str(folder) in part for part in process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
