"""The tools of a job by name: their signatures, the check of a call's arguments, and the program of a call.

    api.tasks, api.roles --> load_toolset --> Toolset --> rollout.chat_format (system prompt)
                                                |-------> parser (names and arguments)
                                                '-------> rollout.agent (programs for the judge)

A built-in tool runs the model's own program. A function tool runs a user's function with the model's arguments. A
remote tool is called at its MCP server (rollout/remote_tools.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2_train.api.base import amount
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.roles import ToolName, ToolParser
from rstar2_train.api.tasks import EnvironmentSpec, MCPServerSpec, ToolSpec
from rstar2_train.tools.call_form import family_section
from rstar2_train.tools.environment import EnvironmentTools, read_environment
from rstar2_train.tools.function_schema import read_signature
from rstar2_train.tools.mcp_session import list_tools
from rstar2_train.tools.remote_schema import declared_signature, lenient_schema, remote_signature
from rstar2_train.tools.sandbox_program import SourceError, function_input, function_program, read_sources
from rstar2_train.tools.schema import JUPYTER, TOOL_NAME, TOOLS, qwen_tools_section, tools_section
from rstar2_train.utils.run_in_new_loop import run_in_new_loop
from rstar2_train.utils.text import lone_surrogate

if TYPE_CHECKING:
    from rstar2_train.api.job import JobSpec

ENVIRONMENT = "environment/"
"""`Tool.server` of the environment; no name of an MCP server contains a slash."""
MAX_RETURNED_BYTES = 256 * 1024
"""Bytes of the files that a call returns."""
MAX_DETAIL = 200
"""Characters of a message on wrong arguments: a schema's message repeats the value."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool: what the model reads of it, and how its calls run."""

    signature: dict[str, Any]
    """Signature in the system prompt."""
    read: Callable[[dict[str, Any]], tuple[str, str]]
    """Returns code and stdin of a call's arguments. Raises ValueError with the fault of wrong arguments. It can be
    pickled, for rollout workers."""
    program: str = ""
    """Program that calls the user's function; empty: the call's code is the program."""
    wall_seconds: int | None = None
    memory_mib: int | None = None
    """Limits of a call; None: the job's."""
    server: str = ""
    """Server that runs the calls; empty: the judge."""
    returns_files: bool = False
    """Whether a call returns the files that it writes into /tmp/out."""

    @property
    def name(self) -> str:
        """Name that a call gives."""
        return str(self.signature["function"]["name"])

    def limits(self, limits: JudgeLimits) -> JudgeLimits:
        """Return the limits of a call; `limits`: the job's."""
        own = {"wall_seconds": self.wall_seconds, "memory_mib": self.memory_mib}
        given = {name: value for name, value in own.items() if value is not None}
        if self.returns_files:
            given["file_bytes"] = MAX_RETURNED_BYTES
        return limits.model_copy(update=given) if given else limits

    def snippet(self, code: str, stdin: str, files: Mapping[str, bytes]) -> tuple[str, str]:
        """Return program and standard input of a call. `files`: those of the row; a built-in tool has none."""
        return (self.program, function_input(json.loads(code), files)) if self.program else (code, stdin)


@dataclass(frozen=True)
class Toolset:
    """The tools that the model may call."""

    tools: tuple[Tool, ...]
    in_paper_form: bool = False
    """Whether the system prompt describes them in the form of the paper's Figure 2, else in that of Qwen."""
    servers: tuple[MCPServerSpec, ...] = ()
    """MCP servers of the tools."""
    environment: EnvironmentTools | None = None
    """Environment of each rollout, which runs the tools with server ENVIRONMENT."""
    parser: ToolParser = "hermes"
    """Form of calls."""
    is_declared: bool = False
    """Whether a row declares them and nothing runs: the calls of a turn are its answer, and end the rollout."""

    @cached_property
    def by_name(self) -> Mapping[str, Tool]:
        """Tools by name."""
        return {tool.name: tool for tool in self.tools}

    @property
    def has_notebook(self) -> bool:
        """Whether the calls are cells of a session."""
        return JUPYTER in self.by_name

    def select(self, names: Iterable[str] | None, functions: str = "") -> Toolset:
        """Return the tools with these names, in the job's order; None: all. Raises ValueError for an unknown name.

        The tools of the environment are always selected. `functions`: those that the row declares instead (JSON). With
        an empty list there is no tool: a call is an error, to which the model may reply.
        """
        if functions:
            declared = tuple(Tool(declared_signature(function), _any_arguments) for function in json.loads(functions))
            return Toolset(declared, parser=self.parser, is_declared=bool(declared))
        if names is None:
            return self
        allowed = set(names)
        unknown = sorted(allowed - set(self.by_name))
        if unknown:
            raise ValueError(f"unknown tool {unknown[0]!r}; the job has {', '.join(self.by_name)}")
        return replace(
            self, tools=tuple(tool for tool in self.tools if tool.name in allowed or tool.server == ENVIRONMENT)
        )

    def section(self, signatures: Sequence[dict[str, Any]] | None = None) -> str:
        """Return the part of a system prompt that describes the tools; empty without tools.

        `signatures`: of other tools, to describe in the same form.
        """
        signatures = [tool.signature for tool in self.tools] if signatures is None else signatures
        if not signatures:
            return ""
        if self.parser != "hermes":
            return family_section(signatures, self.parser)
        return tools_section(signatures) if self.in_paper_form else qwen_tools_section(signatures)


def builtin_toolset(name: ToolName = TOOL_NAME) -> Toolset:
    """Return the one built-in tool of a job without `spec.tools`."""
    return Toolset((_builtin(name),), in_paper_form=True)


def offline_toolset(spec: JobSpec) -> Toolset:
    """Return a toolset that describes tools in the form of the job's own, for a stage that samples nothing.

    It has none of the job's own tools: it reads no file and needs no server.
    """
    has_own = spec.agent is not None or spec.tools or spec.environments
    return Toolset(()) if has_own else builtin_toolset(spec.rollout.tool)


def job_toolset(spec: JobSpec, services: Sequence[str] = ()) -> Toolset:
    """Return the tools of a job: none if it has an agent, whose program has its own. As `load_toolset`."""
    if spec.agent is not None:
        return Toolset(())
    return load_toolset(spec.tools, spec.rollout.tool, spec.mcp_servers, spec.environments, services)


def load_toolset(
    specs: Sequence[ToolSpec],
    tool: ToolName = TOOL_NAME,
    servers: Sequence[MCPServerSpec] = (),
    environments: Sequence[EnvironmentSpec] = (),
    services: Sequence[str] = (),
) -> Toolset:
    """Return the tools of `spec.tools` and of the environment; without both, `tool`, which is `spec.rollout.tool`.

    Reads the users' files and never imports them. Connects to the MCP servers (`spec.mcpServers`) of the tools, and to
    the environment (`spec.environments`), whose `HOST:PORT` are `services` unless it has a URL.
    Raises SourceError for a file or a server's tool that cannot be used, ServerLost for an unreachable server.
    """
    if not specs and not environments:
        return builtin_toolset(tool)
    environment = _read_environment(environments[0], services) if environments else None
    needed = {spec.server for spec in specs}
    used = tuple(server for server in servers if server.name in needed)
    remote = list_tools(used)
    own = [_remote_tool(spec, remote[spec.server]) if spec.server else load_tool(spec) for spec in specs]
    signatures = () if environment is None else environment.signatures
    actions = [schema_tool(signature, server=ENVIRONMENT) for signature in signatures]
    tools = (*own, *actions)
    names = [tool.name for tool in tools]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SourceError(f"two tools have the name {repeated!r}: one of spec.tools, and one of the environment")
    return Toolset(tools, servers=used, environment=environment)


def _read_environment(spec: EnvironmentSpec, services: Sequence[str]) -> EnvironmentTools:
    if spec.url is None and not services:
        raise SourceError(
            f"environment {spec.name}: this command does not start its servers; start one yourself and set its url in "
            "spec.environments"
        )
    return run_in_new_loop(read_environment(spec, services))


def schema_tool(signature: dict[str, Any], *, server: str) -> Tool:
    """Return a tool of a signature from `remote_signature`. `server`: who runs its calls."""
    return Tool(signature, _SchemaReader(lenient_schema(signature["function"]["parameters"])), server=server)


def _remote_tool(spec: ToolSpec, offered: Sequence[Any]) -> Tool:
    """Return a tool of an MCP server. Raises SourceError if the server does not offer it, or its schema is unusable."""
    match = next((tool for tool in offered if tool.name == spec.name), None)
    if match is None:
        names = ", ".join(tool.name for tool in offered) or "none"
        raise SourceError(f"MCP server {spec.server} has no tool {spec.name!r}; its tools: {names}")
    signature = remote_signature(match.name, match.description or "", match.input_schema)
    return replace(schema_tool(signature, server=spec.server or ""), wall_seconds=spec.timeout_seconds)


def load_tool(spec: ToolSpec) -> Tool:
    """Return one tool of `spec.tools`. Raises SourceError for a file that cannot be used."""
    limits: dict[str, Any] = {
        "returns_files": True,
        "wall_seconds": spec.timeout_seconds,
        "memory_mib": None if spec.memory is None else int(amount(spec.memory)) >> 20,
    }
    if spec.source is None:
        if spec.name not in TOOLS:
            raise SourceError(f"{spec.name!r} is not a built-in tool ({', '.join(TOOLS)}); set source to its file")
        return replace(_builtin(spec.name), **limits)
    module, sources = read_sources(Path(spec.source))
    signature = read_signature(spec.name, sources)
    program = function_program(module, sources, spec.name)
    return Tool(signature, _SchemaReader(signature["function"]["parameters"]), program, **limits)


def _builtin(name: str) -> Tool:
    signature = next(signature for known, signature in TOOLS.items() if known == name)
    return Tool(signature, partial(_read_program, frozenset(signature["function"]["parameters"]["properties"])))


def _read_program(known: frozenset[str], arguments: dict[str, Any]) -> tuple[str, str]:
    """Read the arguments of a tool that runs a program: texts; `input` is optional. `known`: names of arguments."""
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise ValueError(f"unknown argument {unknown[0]!r}")
    code, stdin = arguments.get("code"), arguments.get("input", "")
    for argument, value in (("code", code), ("input", stdin)):
        if not isinstance(value, str):
            raise ValueError(f'"{argument}" must be a string')
        if lone_surrogate(value):
            raise ValueError(f'"{argument}" holds half a surrogate pair')
    assert isinstance(code, str)
    return code, stdin


def _any_arguments(arguments: dict[str, Any]) -> tuple[str, str]:
    """Return the arguments of a declared function as JSON. The reward of the row checks them."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("the arguments are nested too deep") from None
    if lone_surrogate(text):
        raise ValueError("an argument holds half a surrogate pair")
    return text, ""


class _SchemaReader:
    """Checks arguments by a JSON schema, strictly, and returns them as JSON."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from jsonschema import Draft202012Validator

        self._schema = schema
        self._validator = Draft202012Validator({"additionalProperties": False, **schema})

    def __reduce__(self) -> tuple[Any, ...]:
        return _SchemaReader, (self._schema,)

    def __call__(self, arguments: dict[str, Any]) -> tuple[str, str]:
        from jsonschema.exceptions import best_match

        text_and_stdin = _any_arguments(arguments)
        try:
            error = best_match(self._validator.iter_errors(arguments))
        except RecursionError:
            raise ValueError("the arguments are nested too deep") from None
        if error is not None:
            place = ".".join(map(str, error.absolute_path))
            message = f'"{place}": {error.message}' if place else error.message
            raise ValueError(message if len(message) <= MAX_DETAIL else f"{message[:MAX_DETAIL]}...")
        return text_and_stdin
