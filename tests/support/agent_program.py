"""An agent's program for tests, with the standard library only: `agent_program.py MODE [ARGUMENT]`."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BASE = os.environ.get("OPENAI_BASE_URL", "")


def post(path: str, body: object, *, key: str | None = None) -> tuple[int, Any]:
    """Return status and JSON body of a request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key or os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(BASE + path, data, headers)) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask(text: str, **more: Any) -> tuple[int, Any]:
    """Return the answer to one message."""
    return post("/chat/completions", {"messages": [{"role": "user", "content": text}], **more})


def main(mode: str, argument: str = "") -> None:
    """Play one episode, well or not."""
    row = json.load(sys.stdin)
    match mode:
        case "good":
            status, reply = ask(row["problem"])
            assert status == 200, reply
            text = reply["choices"][0]["message"]["content"]
            assert post("/reward", {"reward": float(text == row["answer"]), "reason": "equal"})[0] == 200
        case "hang":
            ask(row["problem"])
            time.sleep(600)
        case "dies":
            ask(row["problem"])
            raise SystemExit("out of ideas")
        case "silent":
            return
        case "no-turn":
            assert post("/reward", {"reward": 1.0})[0] == 400
        case "floods-requests":
            while True:
                ask(row["problem"], n=2)
        case "floods-turns":
            while ask(row["problem"])[0] == 200:
                pass
        case "grows":
            messages = [{"role": "user", "content": row["problem"]}]
            while (reply := post("/chat/completions", {"messages": messages}))[0] == 200:
                messages += [reply[1]["choices"][0]["message"], {"role": "user", "content": "Again. " * 5}]
            assert reply[1]["error"]["code"] == "context_length_exceeded"
        case "too-long":
            print(ask("word " * 5000)[1]["error"]["message"], file=sys.stderr)
        case "floods-stderr":
            while True:
                sys.stderr.write("x" * 65536)
        case "large":
            status, reply = post("/chat/completions", b"[" + b"1," * 5_000_000 + b"1]")
            assert (status, "larger than 8 MiB" in reply["error"]["message"]) == (413, True)
            main_good(row)
        case "twice":
            main_good(row)
            status, reply = post("/reward", {"reward": 1.0})
            assert (status, reply["error"]["message"]) == (409, "the episode has the reward 0: post it once"), reply
            assert ask(row["problem"])[0] == 400
        case "faulty-rewards":
            ask(row["problem"])
            for value in ("NaN", "Infinity", "2", "-1", '"a"', "{", "null"):
                assert post("/reward", f'{{"reward": {value}}}'.encode())[0] == 400, value
            assert post("/reward", {"reward": 0.25})[0] == 200
        case "other-key":
            assert post("/chat/completions", {"messages": []}, key="x")[0] == 401
            assert post("/reward", {"reward": 1.0}, key="x")[0] == 401
            main_good(row)
        case "spy":
            text = ask(row["problem"], max_tokens=16)[1]["choices"][0]["message"]["content"]
            leaks = spy(argument.split(","))
            post("/reward", {"reward": len(text) % 5 / 4, "reason": "; ".join(leaks) or "isolated"})
        case "late":
            ask(row["problem"])
            if os.fork() == 0:  # a child in another session outlives the program, and has its key
                os.setsid()
                for _ in range(1000):  # until the key is unknown, or far beyond the end of the program
                    if post("/chat/completions", {"messages": []})[0] == 401:
                        break
                    time.sleep(0.05)
                status, _ = post("/reward", {"reward": 1.0})
                Path(argument).write_text(str(status))
            else:
                raise SystemExit(1)


def spy(addresses: list[str]) -> list[str]:
    """Return the secrets that the program can read, and the addresses that it can reach but must not."""
    leaks = [f"variable {name}" for name in os.environ if "TOKEN" in name or "PASSWORD" in name]
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if b"RSTAR2_AGENT_TOKEN" in file.read_bytes():
                leaks.append(str(file))
    for address in addresses:
        host, _, port = address.rpartition(":")
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), 3).close()
            leaks.append(address)
    return leaks


def main_good(row: dict[str, Any]) -> None:
    """Post a reward of 0 after one turn."""
    assert ask(row["problem"])[0] == 200
    assert post("/reward", {"reward": 0.0})[0] == 200


if __name__ == "__main__":
    main(*sys.argv[1:])
