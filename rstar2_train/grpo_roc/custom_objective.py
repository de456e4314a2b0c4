"""An objective in a file of the user: its two functions, and errors that name the line of the file.

The file is trusted code: the orchestrator (advantages) and each rank of the trainer (loss) import it, unsandboxed.
`trainer.objective_check` tries both functions before the job starts. Imports no torch.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rstar2_train.api.contracts import StageFailed
from rstar2_train.grpo_roc.tokens import GroupRewards, RatioOf, Terms, Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from rstar2_train.api.stages import GRPOSettings

FUNCTIONS = ("advantages", "loss")
"""Names of the two functions; each has two positional parameters."""


class ObjectiveFailed(StageFailed):
    """A file of the user failed, or its result cannot be used. The message has the file, the line and the fix."""

    def __init__(self, message: str) -> None:
        super().__init__("BadConfiguration", message, retryable=False)


@functools.cache
def custom_functions(
    source: str,
) -> tuple[Callable[[GroupRewards, GRPOSettings], list[float]], Callable[[Tokens, GRPOSettings], Terms]]:
    """Return the functions of a file, which is imported once per process. They raise ObjectiveFailed for any error."""
    path, name = Path(source), module_name(source)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ObjectiveFailed(f"{path}: not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _call(path, "the import", spec.loader.exec_module, module)
    missing = [name for name in FUNCTIONS if not callable(getattr(module, name, None))]
    if missing:
        raise ObjectiveFailed(f"{path}: no function {missing[0]!r}; define {missing[0]}(...) at the top level")

    def advantages(group: GroupRewards, settings: GRPOSettings) -> list[float]:
        values = _call(path, "advantages", module.advantages, group, settings)
        at, size = line_of(path, module.advantages), len(group.rewards)
        if not isinstance(values, list) or len(values) != size:
            kind = f"of {len(values)}" if isinstance(values, list) else type(values).__name__
            raise ObjectiveFailed(f"{at}: advantages must return a list of {size} numbers, one per rollout, not {kind}")
        try:
            numbers = [float(value) for value in values if isinstance(value, int | float)]
        except OverflowError:  # an int beyond the floats
            numbers = []
        if len(numbers) != size or not all(map(math.isfinite, numbers)):
            raise ObjectiveFailed(f"{at}: advantages must return finite Python floats, not {values}")
        return numbers

    def loss(tokens: Tokens, settings: GRPOSettings) -> Terms:
        terms = _call(path, "loss", module.loss, tokens, settings)
        at = line_of(path, module.loss)
        if not isinstance(terms, Terms):
            message = "loss must return rstar2_train.grpo_roc.tokens.Terms"
            raise ObjectiveFailed(f"{at}: {message}, not {type(terms).__name__}")
        for field in ("objective", "weights", "clipped"):
            value = getattr(terms, field)
            if value is None and field == "clipped":
                continue
            if fault := _tensor_fault(value, tokens.logprobs, is_number=field != "clipped"):
                raise ObjectiveFailed(f"{at}: Terms.{field} must be a tensor {fault}")
        if terms.weights.requires_grad:
            raise ObjectiveFailed(f"{at}: Terms.weights must have no gradient: call detach()")
        if terms.ratio_of not in get_args(RatioOf):
            allowed = " or ".join(get_args(RatioOf))
            raise ObjectiveFailed(f"{at}: Terms.ratio_of must be {allowed}, not {terms.ratio_of!r}")
        return terms

    return advantages, loss


def module_name(source: str) -> str:
    """Return the name of the module of a file."""
    return "rstar2_objective_" + re.sub(r"\W", "_", source)


def line_of(path: Path, function: Any) -> str:
    """Return FILE:LINE of the definition of a function, without its decorators; FILE if the file does not define it."""
    function = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    if not inspect.isfunction(function):  # an object, or a class
        owner = function if isinstance(function, type) else type(function)
        function = vars(owner).get("__init__" if owner is function else "__call__")
    code = getattr(function, "__code__", None)
    return f"{path}:{code.co_firstlineno}" if code and code.co_filename == str(path) else str(path)


def _tensor_fault(value: Any, like: Tensor, *, is_number: bool) -> str:
    """Return why a result cannot be used with tensors `like` it; empty: it can. `is_number`: whether it may round."""
    if not isinstance(value, type(like)):
        return f"of torch, not {type(value).__name__}"
    if value.shape != like.shape:
        return f"of the shape {tuple(like.shape)}, not {tuple(value.shape)}"
    if value.layout != like.layout:
        return f"of the layout {like.layout}, not {value.layout}"
    if value.device != like.device:
        return f"on the device of tokens.logprobs, {like.device}, not {value.device}"
    if is_number and (not value.dtype.is_floating_point or value.dtype.itemsize < like.dtype.itemsize):
        return f"of {like.dtype}, not {value.dtype}, which rounds the weights of large updates: call .to({like.dtype})"
    return ""


def _call(path: Path, name: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (Exception, SystemExit, GeneratorExit) as error:  # the process is that of the trainer
        raise ObjectiveFailed(f"{_last_line(path, error)}: {name} failed: {type(error).__name__}: {error}") from error


def _last_line(path: Path, error: BaseException) -> str:
    """Return FILE:LINE of the last statement of the file that ran."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)
