"""An OpenEnv server without OpenEnv, for tests: `python tests/support/openenv_server.py KIND EPISODES PORT`.

Kinds: `guess` (a number from 1 to 100), `python` (an environment whose tool runs programs, as OpenEnv's MCP
environments have it), or a fault: a `guess` environment that fails at its second step.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

GUESS = {
    "title": "Guess",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "metadata": {"type": "object", "title": "Metadata"},
        "number": {"type": "integer", "minimum": 1, "maximum": 100, "description": "Your guess."},
    },
    "required": ["number"],
}
CALL = {"type": "object", "properties": {"tool_name": {"type": "string"}, "arguments": {"type": "object"}}}
PYTHON = {
    "name": "execute_python_code_with_standard_io",
    "description": "Runs a program.",
    "input_schema": {
        "type": "object",
        "properties": {"code": {"type": "string"}, "input": {"type": "string"}},
        "required": ["code"],
    },
}


def answer(fields: dict[str, Any], reward: float | None = None, *, done: bool = False) -> str:
    """Return an observation as OpenEnv sends it."""
    return json.dumps({"type": "observation", "data": {"observation": fields, "reward": reward, "done": done}})


def error(code: str, message: str) -> str:
    """Return an error as OpenEnv sends it."""
    return json.dumps({"type": "error", "data": {"code": code, "message": message}})


class Guessing:
    """The number game; its observations repeat the transcript."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.steps, self.episode, self.secret, self.transcript = 0, "", 0, ""

    def reset(self, seed: int = 0, episode_id: str = "", secret: int | None = None, **_: Any) -> str:
        self.steps, self.episode = 0, episode_id
        self.secret = random.Random(seed).randint(1, 100) if secret is None else secret
        self.transcript = "I think of a number from 1 to 100."
        return answer({"text": self.transcript, "metadata": {"secret": self.secret}})

    async def step(self, action: dict[str, Any], socket: WebSocket) -> str | None:
        self.steps += 1
        if self.steps == 2 and self.fault != "guess":
            return await self.fail(socket)
        number = action["number"]
        word = "right" if number == self.secret else "higher" if number < self.secret else "lower"
        self.transcript += f"\n{word}"
        return answer({"text": self.transcript}, float(word == "right"), done=word == "right" or self.steps >= 8)

    async def fail(self, socket: WebSocket) -> str | None:
        match self.fault:
            case "hang":
                await asyncio.sleep(3600)
            case "exit":
                os._exit(3)
            case "flood":
                return answer({"text": "x" * (4 << 20)}, 1.0, done=True)
            case "many":
                return answer({"text": "over", "cells": [[]] * 5000}, 1.0, done=True)
            case "malformed":
                return '{"type": "observation", "data": '
            case "deep":
                return '{"type": "observation", "data": ' + "[" * 100_000
            case "nan":
                return answer({"text": "over"}, None, done=True)  # OpenEnv sends NaN as null
            case "infinite":
                return '{"type": "observation", "data": {"observation": {}, "reward": Infinity, "done": true}}'
            case "no_done":
                return '{"type": "observation", "data": {"observation": {}, "reward": 1.0}}'
            case "error":
                return error("EXECUTION_ERROR", "unlucky")
            case "twice":
                await socket.send_text(answer({"text": "higher"}, 0.0))
                return answer({"text": "right"}, 1.0, done=True)
            case "reset":
                self.reset(seed=1, episode_id="another")
                return answer({"text": "higher"}, 0.0)
        return answer({"text": "?"})


class Python:
    """An environment with one tool, which runs programs. The reward: whether the last output is the row's answer."""

    def __init__(self, _: str) -> None:
        self.steps, self.episode, self.gold = 0, "", ""

    def reset(self, episode_id: str = "", gold: str = "", **_: Any) -> str:
        self.steps, self.episode, self.gold = 0, episode_id, gold
        return answer({})

    async def step(self, action: dict[str, Any], _: WebSocket) -> str:
        if action["type"] == "list_tools":
            return answer({"tools": [PYTHON]})
        self.steps += 1
        given = action["arguments"]
        process = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", given["code"]], input=given.get("input", ""),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if process.returncode:
            return answer({"error": {"error_type": "execution_error", "message": process.stderr.strip()}}, 0.0)
        return answer({"result": process.stdout.strip()}, float(process.stdout.strip() == self.gold))


def create_app(kind: str, episodes: int) -> FastAPI:
    """Return the application. `episodes`: episodes at the same time."""
    app = FastAPI()
    open_episodes: set[WebSocket] = set()

    @app.get("/schema")
    def schema() -> dict[str, Any]:
        return {"action": CALL if kind == "python" else GUESS, "observation": {}, "state": {}}

    @app.websocket("/ws")
    async def session(socket: WebSocket) -> None:
        await socket.accept()
        if len(open_episodes) >= episodes:
            await socket.send_text(error("CAPACITY_REACHED", "no free episode"))
            await socket.close()
            return
        open_episodes.add(socket)
        environment: Any = (Python if kind == "python" else Guessing)(kind)
        try:
            while True:
                message = json.loads(await socket.receive_text())
                match message["type"]:
                    case "reset":
                        reply: str | None = environment.reset(**message["data"])
                    case "step":
                        reply = await environment.step(message["data"], socket)
                    case "state":
                        data = {"episode_id": environment.episode, "step_count": environment.steps}
                        reply = json.dumps({"type": "state", "data": data})
                    case "close":
                        break
                    case _:
                        reply = error("UNKNOWN_TYPE", message["type"])
                if reply is not None:
                    await socket.send_text(reply)
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            open_episodes.discard(socket)

    return app


if __name__ == "__main__":
    kind, most, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    uvicorn.run(create_app(kind, most), host="127.0.0.1", port=port, log_level="error")
