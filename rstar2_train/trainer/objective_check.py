"""Tries the objective in a file of the user on a drawn update, before the job starts: in a child process.

    rstar2 validate, rstar2 run, prepare of a cluster --> find_objective_errors --> python -m ...objective_check SPEC

The child runs the functions as the trainer does: packing of the rows, denominators of the update, the loss. It checks
their parameters, shapes, finite values, that the same input gives the same result, and that each token has the same
gradient for any packing.
"""

from __future__ import annotations

import inspect
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.objectives import ObjectiveSpec
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.grpo_roc.custom_objective import FUNCTIONS, ObjectiveFailed, line_of, module_name
from rstar2_train.grpo_roc.objectives import functions_of
from rstar2_train.grpo_roc.tokens import GroupRewards

if TYPE_CHECKING:
    from torch import Tensor

    from rstar2_train.trainer.batching import BatchRow

TIMEOUT_SECONDS = 300
"""Limit of the check of one file; the import of torch takes some seconds of it."""
RTOL = 1e-4
"""Largest relative difference of the gradient of a token between two packings, in float32."""
FAILED = 3
"""Exit code of the child for a file that cannot be used; the message is on its standard output."""
PASSED = "the objective can be used"
"""Last line of a child that has finished: the code of a file may end it with exit code 0."""
_LENGTHS = ((1, 5, 9), (3, 3), (12, 2, 1, 7))
"""Trained tokens of each sequence, by group."""


def find_objective_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return the fault of each file of an objective that exists: field -> message. Runs the code of the files."""
    errors = {}
    for at, grpo in job.grpo_fields():
        spec = grpo.objective
        if spec is not None and spec.type == "Custom" and spec.source and Path(spec.source).is_file():
            error = _check_in_child(spec)
            if error:
                errors[f"{at}.objective.source"] = error
    return errors


def _check_in_child(spec: ObjectiveSpec) -> str:
    """Return the fault of a file; empty: none. In a process of its own: an import may change or end it."""
    command = [sys.executable, "-m", __name__, spec.model_dump_json(exclude_none=True)]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"{spec.source}: the check of the objective exceeded {TIMEOUT_SECONDS} s"
    printed = child.stdout.strip().splitlines()
    if child.returncode == 0 and printed[-1:] == [PASSED]:
        return ""
    if child.returncode == FAILED and printed:
        return printed[-1]
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return f"{spec.source}: the check of the objective ended with exit code {child.returncode}: {last[:500]}"


def check_objective(settings: GRPOSettings) -> None:
    """Try the functions of a Custom objective on drawn data. Raises ObjectiveFailed, which names the line."""
    import torch

    source = Path(settings.objective.source)
    functions = functions_of(settings.objective)
    module = sys.modules[module_name(settings.objective.source)]
    for name in FUNCTIONS:
        function = getattr(module, name)
        try:
            inspect.signature(function).bind(None, settings)
        except TypeError as error:
            raise ObjectiveFailed(f"{line_of(source, function)}: {name} must have two parameters: {error}") from error
    group = GroupRewards((1.0, 0.0, 0.25, 0.0), (4, 9, 2, 30))
    if functions.advantages(group, settings) != functions.advantages(group, settings):
        at = line_of(source, module.advantages)
        raise ObjectiveFailed(f"{at}: advantages must return the same values for the same input")
    at = line_of(source, module.loss)
    torch.manual_seed(0)
    rows, values = _drawn_rows(settings)
    whole, again = (_gradient(rows, values, settings, at=at) for _ in range(2))
    if not torch.equal(whole, again):
        raise ObjectiveFailed(f"{at}: loss must have the same gradient for the same input")
    if not whole.any():
        raise ObjectiveFailed(f"{at}: loss has no gradient: Terms.objective must depend on tokens.logprobs")
    for packed in (False, True):
        parts = _gradient(rows, values, settings, at=at, ranks=2, budget=16, packed=packed)
        if not torch.allclose(whole, parts, rtol=RTOL, atol=RTOL * float(whole.abs().mean())):
            raise ObjectiveFailed(
                f"{at}: loss depends on the packing: the gradient of a token differs between one micro-batch and "
                "several. Use the denominators of tokens.counts or tokens.weights(...), and tokens.sequence_mean for a "
                "mean over a sequence; no value may depend on the other sequences of the micro-batch"
            )


def _drawn_rows(settings: GRPOSettings) -> tuple[list[BatchRow], Tensor]:
    """Return the rows of a drawn update, and [ids, 2] log-probabilities of each id now and before: ids are unique."""
    import numpy as np
    import torch

    from rstar2_train.trainer.batching import grpo_updates
    from rstar2_train.trainer.types import TokenSequence

    at, groups = 1, []
    for lengths in _LENGTHS:
        rewards = GroupRewards([float(number % 2) for number in range(len(lengths))], lengths)
        advantages = functions_of(settings.objective).advantages(rewards, settings)
        sequences = []
        for length, advantage in zip(lengths, advantages, strict=True):
            ids = np.arange(at, at + length + 2, dtype=np.int32)
            sequences.append(TokenSequence(ids, np.arange(len(ids)) >= 2, advantage=advantage))
            at += len(ids)
        groups.append(sequences)
    (update,) = grpo_updates(groups, updates=1, seed=0)
    old = -4 * torch.rand(at) - 0.1
    return [row for group in update for row in group], torch.stack([old + 0.5 * torch.randn(at), old], dim=1)


def _gradient(
    rows: list[BatchRow],
    values: Tensor,
    settings: GRPOSettings,
    *,
    at: str,
    ranks: int = 1,
    budget: int = 10_000,
    packed: bool = True,
) -> Tensor:
    """Return the gradient of the loss by token id, summed over the micro-batches of all ranks, in a drawn order."""
    import torch

    from rstar2_train.grpo_roc.loss import policy_loss
    from rstar2_train.trainer.batching import distribute_rows
    from rstar2_train.trainer.step import objective_tokens
    from rstar2_train.trainer.transfers import on_device

    if ranks > 1:
        rows = random.Random(0).sample(rows, len(rows))
    new = values[:, 0].clone().requires_grad_()
    total = torch.zeros(())
    for share in distribute_rows(rows, ranks=ranks, tokens_per_micro_batch=budget, packed=packed):
        for batch in on_device(share, torch.device("cpu")):
            tokens = objective_tokens(batch, new[batch.targets], values[:, 1][batch.targets], None, None)
            inputs: dict[str, Any] = {
                name: getattr(tokens, name) for name in ("logprobs", "old_logprobs", "advantages", "trained")
            }
            before = {name: tensor.detach().clone() for name, tensor in inputs.items()}
            part = policy_loss(tokens, settings).loss
            changed = [name for name, tensor in inputs.items() if not torch.equal(tensor, before[name])]
            if changed:
                raise ObjectiveFailed(f"{at}: loss must not change tokens.{changed[0]} in place")
            if not torch.isfinite(part):
                raise ObjectiveFailed(f"{at}: the loss is {float(part)}: objective and weights must be finite")
            total = total + part
    if total.requires_grad:
        total.backward()
    gradient = torch.zeros_like(new) if new.grad is None else new.grad
    if not torch.isfinite(gradient).all():
        raise ObjectiveFailed(f"{at}: the gradient of loss is not finite")
    return gradient


def main(argv: list[str]) -> int:
    """Check the objective of a JSON ObjectiveSpec; print the fault and return 3 for a file that cannot be used."""
    settings = GRPOSettings(objective=ObjectiveSpec.model_validate(json.loads(argv[0])).settings())
    try:
        check_objective(settings)
    except ObjectiveFailed as error:
        print(" ".join(str(error).split()))
        return FAILED
    print(PASSED)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
