"""Objectives of a GRPO stage: one module per type, each with the same two functions.

    advantages(group: GroupRewards, settings) -> list[float]    one per kept rollout; orchestrator.selection
    loss(tokens: Tokens, settings) -> Terms                     of one micro-batch; grpo_roc.loss, on each rank

`api.objectives.OBJECTIVES` is the registry: the module of a type has its name in lower case. Type Custom has both
functions in a file of the user. Modules import no torch: they use the methods of the tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rstar2_train.grpo_roc.tokens import GroupRewards, Terms, Tokens

if TYPE_CHECKING:
    from rstar2_train.api.objectives import Objective
    from rstar2_train.api.stages import GRPOSettings


@dataclass(frozen=True, slots=True)
class ObjectiveFunctions:
    """The two functions of an objective."""

    advantages: Callable[[GroupRewards, GRPOSettings], list[float]]
    loss: Callable[[Tokens, GRPOSettings], Terms]


def functions_of(objective: Objective) -> ObjectiveFunctions:
    """Return the functions of a stage's objective. Raises ObjectiveFailed for an unusable file of the user."""
    if objective.type == "Custom":
        # Here, because the other types need no package besides torch.
        from rstar2_train.grpo_roc.custom_objective import custom_functions

        return ObjectiveFunctions(*custom_functions(objective.source))
    module = importlib.import_module(f"{__name__}.{objective.type.lower()}")
    return ObjectiveFunctions(module.advantages, module.loss)
