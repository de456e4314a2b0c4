"""Models of a job's task: the tools of the model, its servers, environment and agent, and the rewards of answers.

`job.py` has them in the spec. `tools/toolset.py` makes tools of the first, `rewards/task_rewards.py` rewards of the
second. Rows of data select among them by name (`data/problems.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rstar2_train.api.base import ATOMIC, SET, ApiModel, ImageName, KeyReference, Name, Quantity, Text
from rstar2_train.api.roles import Resources

ToolId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=64)]
Seconds = Annotated[int, Field(ge=1, le=600)]


class ToolSpec(ApiModel):
    """A tool of the model: a Python function of the user, a tool of an MCP server, or a built-in tool."""

    name: ToolId
    """Name of the function, of the server's tool, or of a built-in tool; unique."""
    source: Text | None = None
    """Python file, or folder of a package, with the function. Default: a built-in tool."""
    server: Name | None = None
    """Entry of mcpServers that has the tool."""
    timeout_seconds: Seconds | None = None
    """Time limit of a call. Default: judge.limits.timeoutSeconds."""
    memory: Quantity | None = None
    """Memory limit of a call. Default: judge.limits.memory."""


class MCPServerSpec(ApiModel):
    """An MCP server. The model has those of its tools that spec.tools lists."""

    name: Name
    """Name of the entry."""
    url: Text | None = None
    """URL of the server, such as http://tools:8000/mcp."""
    command: Annotated[list[Text], Field(max_length=32), ATOMIC] = []
    """`rstar2 run` only: command line of a server on stdio."""
    secret_ref: KeyReference | None = None
    """Bearer token. `rstar2 run` reads the variable NAME_MCP_TOKEN instead; NAME: in upper case, with _ for -."""

    @property
    def token_variable(self) -> str:
        """Environment variable of the bearer token."""
        return self.name.upper().replace("-", "_") + "_MCP_TOKEN"


class EnvironmentSpec(ApiModel):
    """An OpenEnv server: its actions become tools, one episode per rollout."""

    name: Name
    """Name of the entry."""
    url: Text | None = None
    """URL of a running server. Default: the job starts the servers."""
    image: ImageName | None = None
    """Image of the servers; required in a cluster without url."""
    command: Annotated[list[Text], Field(max_length=32), ATOMIC] = []
    """Command line; {host} and {port} are its address. Default: the image's."""
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Servers."""
    max_concurrent_episodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Concurrent episodes per server (OpenEnv's max_concurrent_envs)."""
    step_timeout_seconds: Seconds = 30
    """Time limit of a reset or a step."""
    observation: Text | None = None
    """Field of an observation that the model reads. Default: all."""
    tool_errors: Annotated[list[Text], Field(max_length=16), SET] = []
    """Error codes that are tool errors of the model. Other errors lose the rollout."""
    correct_from: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Lowest reward of a correct response."""
    resources: Resources = Resources()
    """Requests and limits per pod."""

    def argv(self, *, host: str, port: int) -> list[str]:
        """Return the command line of a server that listens on this address."""
        return [part.replace("{host}", host).replace("{port}", str(port)) for part in self.command]


class AgentSpec(ApiModel):
    """A program that plays each rollout through an OpenAI-compatible endpoint."""

    command: Annotated[list[Text], Field(min_length=1, max_length=32), ATOMIC]
    """Command line."""
    image: ImageName | None = None
    """Image of the program, with Python; required in a cluster."""
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pods."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 600
    """Time limit of a rollout, without generation."""
    max_concurrent_episodes: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Concurrent programs per pod."""
    correct_from: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Lowest reward of a correct response."""

    @property
    def programs(self) -> int:
        """Programs that run at the same time: of all pods, or on one machine."""
        return self.max_concurrent_episodes * (self.replicas if self.image is not None else 1)


RewardType = Literal["Math", "Exact", "Choice", "Numeric", "Program", "Tests"]
SANDBOX_REWARDS: frozenset[RewardType] = frozenset({"Math", "Program", "Tests"})
"""Rewards that run a program in the judge's sandbox; Math only for answers that need a parser."""


class RewardSpec(ApiModel):
    """A reward of final answers."""

    name: Name
    """Name that a row of data gives in `reward`; unique. Rows without one use the first reward."""
    type: RewardType = "Math"
    """Kind of comparison with the row's answer."""
    source: Text | None = None
    """Type Program: Python file, or folder of a package, with a function `score`."""
    relative_tolerance: Annotated[float, Field(ge=0, le=1)] = 1e-6
    """Type Numeric: allowed difference, as a share of the answer."""
    absolute_tolerance: Annotated[float, Field(ge=0)] = 0.0
    """Type Numeric: allowed difference, in the unit of the answer."""
    needs_unit: bool = False
    """Type Numeric: whether a response without a unit is wrong if the answer has one."""
    correct_from: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Lowest score of a correct response."""
    timeout_seconds: Seconds = 30
    """Time limit of a program or test."""
