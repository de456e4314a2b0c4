"""Stands between a command or a driver and the engine: knows each request by its seed, notes it, may hold or cut it.

For tests of what is asked, and what is asked again after a kill. `sums`: four problems that the memorising model
answers with 42, which is wrong at the third.
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
from rstar2_train.rollout.seeds import derive_seed
from tests.support.engine import QUESTION, Engine

GOLD = ["42", "42", "41", "42"]
SAMPLES = 4
HELD = (2, 3)
"""Samples that do not come to their end while the relay holds."""
TURNS = 2

Asked = tuple[str, int, int]
"""Problem, sample, turn."""


class Relay:
    """A server before the engine."""

    def __init__(self, engine: Engine, which: dict[int, Asked]) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.holding = asyncio.Event()
        """While it is set, the last turns of HELD samples wait."""
        self.cut: set[tuple[str, int]] = set()
        """Samples (problem, number) that are stopped after three tokens of their last turn, which makes them wrong."""
        self.released = asyncio.Event()
        self._engine = engine
        self._which = which

    async def answer(self, request: web.Request) -> web.Response:
        """Pass a request on to the engine."""
        body = await request.read()
        if request.path in ("/v1/completions", "/rstar2/generate"):
            wish = json.loads(body)
            asked = self._which[wish["seed"]]
            self.asked.append(asked)
            problem, sample, turn = asked
            if self.holding.is_set() and sample in HELD and turn == TURNS - 1:
                await self.released.wait()
                raise web.HTTPServiceUnavailable
            if (problem, sample) in self.cut and turn == TURNS - 1:
                body = json.dumps(wish | {"max_tokens": 3}).encode()
        headers = {"Authorization": request.headers.get("Authorization", ""), "Content-Type": "application/json"}
        url = self._engine.url + request.path_qs
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, url, data=body, headers=headers) as reply,
        ):
            return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)


def seeds(name: str, problems: Iterable[str]) -> dict[int, Asked]:
    """Seed of a request -> what it asks for. `name` follows the job's seed, 0, in all of them."""
    return {
        derive_seed(0, name, problem, sample, turn): (problem, sample, turn)
        for problem in problems
        for sample in range(SAMPLES)
        for turn in range(TURNS)
    }


@asynccontextmanager
async def relaying(engine: Engine, which: dict[int, Asked]) -> AsyncIterator[Relay]:
    """A relay that listens at `url`."""
    relay = Relay(engine, which)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", relay.answer)
    runner = web.AppRunner(app, shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    relay.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield relay
    finally:
        relay.released.set()
        await runner.cleanup()


def write_sums(folder: Path, *, golds: Iterable[str] = GOLD) -> Path:
    """The file of problems; ids are their numbers."""
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
        cwd=folder,  # MLflow puts the artifacts of a sqlite file into the current folder
        start_new_session=True,
    )


def write_job(manifest: dict[str, Any], folder: Path) -> JobState:
    """A state folder for a driver of this job."""
    job, problems = check(manifest)
    assert job is not None, problems
    state = JobState(folder)
    write_model(state.job_file, job)
    return state


async def drive(
    engine: Engine, state: JobState, stage: str, *, attempt: int, url: str, judge: str
) -> asyncio.subprocess.Process:
    """Start the driver of an attempt, as `rstar2 run` does. `url`: of the engine, or of what stands before it."""
    write_model(state.stage(stage).attempt_file, AttemptRecord(attempt=attempt))
    return await start(
        engine, state.root, "rstar2_train.orchestrator", "--state", state.root, "--stage", stage,
        "--attempt", str(attempt), "--engine", url, "--judge", judge,
    )  # fmt: skip


async def finish(run: asyncio.subprocess.Process, *, code: int = 0) -> str:
    """The output of a run that must end with `code`."""
    output = (await run.communicate())[0].decode()
    assert run.returncode == code, output
    return output


async def kill_at(run: asyncio.subprocess.Process, files: str, *, folder: Path, samples: int) -> None:
    """kill -9 as soon as so many samples are on disk, while it and its children run."""
    while len(kept(folder, files)) < samples:
        assert run.returncode is None, (await run.communicate())[0].decode()
        await asyncio.sleep(0.1)
    assert running(folder)
    run.kill()
    await run.communicate()


def kept(folder: Path, files: str) -> list[tuple[str, int]]:
    """The samples on disk, in files of a pattern."""
    lines = [line for file in folder.glob(files) for line in file.read_text().splitlines()]
    rows = [json.loads(line)["scored"] for line in lines]
    return [(row["prompt_id"], row["sample"]) for row in rows]


def running(folder: Path) -> list[list[str]]:
    """Command lines of processes that work in `folder`."""
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "status"])
        if any(str(folder) in part for part in process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
