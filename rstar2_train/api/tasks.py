"""Models of a job's task: the tools of the model, and the rewards of its answers.

`job.py` has them in the spec. `tools/toolset.py` makes tools of the first, `rewards/task_rewards.py` rewards of the
second. Rows of data select among them by name (`data/problems.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rstar2_train.api.base import ApiModel, Name, Quantity, Text

FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
Seconds = Annotated[int, Field(ge=1, le=600)]


class ToolSpec(ApiModel):
    """A tool of the model: a Python function of the user, or a built-in tool."""

    name: FunctionName
    """Name of the function, or of a built-in tool; unique."""
    source: Text | None = None
    """Python file, or folder of a package, with the function. Default: a built-in tool."""
    wall_seconds: Seconds | None = None
    """Time limit of a call. Default: judge.limits.wallSeconds."""
    memory: Quantity | None = None
    """Memory limit of a call. Default: judge.limits.memory."""


RewardType = Literal["Math", "Exact", "Choice", "Numeric", "Program", "Tests"]


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
    wall_seconds: Seconds = 30
    """Time limit of a program or test."""
