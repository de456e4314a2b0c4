"""A peer that violates its protocol: `python tests/support/faulty_peer.py FAULT [PORT]`.

As an MCP server on stdio it first answers `initialize` and `tools/list` correctly, then each call with the fault.
With a port it is an HTTP server that answers each call with the fault.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "add", "description": "Adds.", "inputSchema": SCHEMA}
FAULTS = {
    "malformed": b'{"jsonrpc": "2.0", "id": \n',
    "wrong_shape": b'{"jsonrpc": "2.0", "id": ID, "result": {"content": 5}}\n',
    "flood": b"x" * (4 << 20) + b"\n",
    "many_parts": b'{"jsonrpc": "2.0", "id": ID, "result": {"content": ['
    + b'{"type": "text", "text": ""}, ' * 20_000
    + b'{"type": "text", "text": ""}]}}\n',
    "hang": b"",
}
"""Fault -> bytes that answer a call; ID is its id. `drip` sends a byte per 50 ms instead, `exit` ends the process."""


def answer(request: dict[str, Any]) -> bytes | None:
    """Return the correct answer of the opening of a session; None for a call."""
    match request.get("method"):
        case "initialize":
            server = {"name": "faulty", "version": "1"}
            version = request["params"]["protocolVersion"]
            result: Any = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            result = {"tools": [TOOL]}
        case "tools/call":
            return None
        case _:
            return b""
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode() + b"\n"


def write_fault(fault: str, write: Any, request: dict[str, Any]) -> None:
    """Write the answer of a call."""
    if fault == "exit":
        sys.exit(1)
    if fault != "drip":
        write(FAULTS[fault].replace(b"ID", str(request["id"]).encode()))
    while fault in ("drip", "hang"):
        if fault == "drip":
            write(b" ")
        time.sleep(0.05)


def serve_stdio(fault: str) -> None:
    """Serve one session."""

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    for line in sys.stdin:
        request = json.loads(line)
        opening = answer(request)
        if opening is None:
            write_fault(fault, write, request)
        else:
            write(opening)


class Handler(BaseHTTPRequestHandler):
    """Serves MCP over HTTP without events."""

    fault = ""

    def do_POST(self) -> None:
        """Answer one message."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        opening = answer(request)
        self.send_response(200 if opening != b"" else 202)
        self.send_header("content-type", "application/json")
        self.send_header("mcp-session-id", "s")
        if opening is not None:
            self.send_header("content-length", str(len(opening)))
            self.end_headers()
            self.wfile.write(opening)
            return
        self.end_headers()
        self.close_connection = True
        write_fault(self.fault, self.wfile.write, request)

    def do_GET(self) -> None:
        """Refuse the stream of events."""
        self.send_response(405)
        self.end_headers()

    do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve_stdio(sys.argv[1])
    else:
        Handler.fault = sys.argv[1]
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
