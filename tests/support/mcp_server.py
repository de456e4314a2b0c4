"""An MCP server for tests: `python tests/support/mcp_server.py stdio`, or a port for HTTP on loopback."""

import asyncio
import os
import subprocess
import sys
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent
from pydantic import Field

server = MCPServer("toolbox")
counted: dict[str, int] = {}


@server.tool()
def add(a: int, b: Annotated[int, Field(description="Second term.", ge=0)] = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def fail(reason: str) -> str:
    """Raises."""
    raise ToolError(reason)


@server.tool()
def count() -> int:
    """Counts the calls of this process."""
    counted["calls"] = counted.get("calls", 0) + 1
    return counted["calls"]


@server.tool()
async def hang() -> str:
    """Never returns."""
    await asyncio.sleep(3600)
    return ""


@server.tool()
def execute_python_code_with_standard_io(code: str, input: str = "") -> CallToolResult:
    """Runs a program."""
    process = subprocess.run([sys.executable, "-c", code], input=input, capture_output=True, text=True, check=False)
    text = process.stderr if process.returncode else process.stdout
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=process.returncode != 0)


@server.tool()
def exit_now() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def flood(characters: int) -> str:
    """Returns a long text."""
    return "x" * characters


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
