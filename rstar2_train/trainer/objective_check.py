"""Tries the objective in a file of the user on drawn updates, before the job starts: in a child process.

    rstar2 validate, rstar2 run, prepare of a cluster --> find_objective_errors --> python -m ...objective_check FD

The child runs the functions as the trainer does, with the settings of each stage: packing of the rows, denominators of
the update, ranks without a row, the loss. It checks their parameters, shapes, finite values, that they change none of
their input, that the same input gives the same result, also after other calls, and that each token has the same
gradient for any packing.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import inspect
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.stages import GRPOSettings
from rstar2_train.grpo_roc.custom_objective import FUNCTIONS, ObjectiveFailed, custom_functions, line_of, module_name
from rstar2_train.grpo_roc.objectives import functions_of
from rstar2_train.grpo_roc.tokens import LOG_RATIO_LIMIT, GroupRewards, Tokens
from rstar2_train.utils.text import one_line

if TYPE_CHECKING:
    from torch import Tensor

    from rstar2_train.trainer.batching import BatchRow, MicroBatch

TIMEOUT_SECONDS = 300
"""Limit of the check of one file; the import of torch takes some seconds of it."""
CALLS_SECONDS = 120
"""Limit of the calls of its functions, which take less than a second; the stack is printed after it."""
RTOL = 1e-4
"""Largest relative difference of the gradient of a token between two packings, in float32."""
_LENGTHS = ((1, 5, 9), (3, 3), (12, 2, 1, 7))
"""Trained tokens of each sequence, by group."""
_REWARDS = ((0.0, 0.5, 1.0), (1.0, 0.0), (1.0, 0.0, 1.0, 1.0))
"""Rewards of each sequence; one equals the mean of its group."""
_WHERE = {"equal": "for ratios of 1", "drawn": "for drawn ratios", "extreme": "for log ratios beyond +-20"}
"""Words for the ratios of an update, in messages."""
DROPPED = " if maxSequenceGap drops rollouts, whose tokens.sequence_tokens and counts are 0"


def find_objective_errors(job: AgenticRLJob) -> dict[str, str]:
    """Return the fault of each file of an objective that exists: field -> message. Runs the code of the files.

    Stages with the same file are checked in one child, each with its own settings.
    """
    fields: dict[str, list[str]] = {}
    settings: dict[str, list[GRPOSettings]] = {}
    for index, stage in enumerate(job.spec.stages):
        if stage.grpo is None:
            continue
        effective = job.grpo_settings(stage)
        source = effective.objective.source
        if effective.objective.type == "Custom" and Path(source).is_file():
            at = "spec.grpo" if stage.grpo.objective is None else f"spec.stages[{index}].grpo"
            fields.setdefault(source, []).append(f"{at}.objective.source")
            settings.setdefault(source, []).append(effective)
    errors = {source: _check_in_child(source, settings[source]) for source in fields}
    return {field: errors[source] for source in fields for field in fields[source] if errors[source]}


def _check_in_child(source: str, settings: Sequence[GRPOSettings]) -> str:
    """Return the fault of a file; empty: none. In a process of its own: an import may change or end it.

    The result has a pipe of its own, because the file may print, and may end the child with exit code 0.
    """
    reader, writer = os.pipe()
    documents = json.dumps([stage.model_dump(mode="json") for stage in settings])
    try:
        child = subprocess.run(
            [sys.executable, "-m", __name__, str(writer)],
            input=documents,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            pass_fds=[writer],
        )
    except subprocess.TimeoutExpired:
        return f"{source}: the check of the objective exceeded {TIMEOUT_SECONDS} s"
    finally:
        os.close(writer)
        with os.fdopen(reader) as pipe:
            result = pipe.read()
    if result:
        return str(json.loads(result)["fault"])
    # The stack of an exception that `_call` does not catch, or of a function that never ends.
    lines = re.findall(rf'File "{re.escape(source)}", line (\d+)', child.stderr)
    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
    if "Timeout (" in child.stderr:
        last = f"a function ran for more than {CALLS_SECONDS} s"
    at = f"{source}:{lines[-1]}" if lines else source
    return f"{at}: the check of the objective ended with exit code {child.returncode}: {last[:500]}"


def check_objective(settings: GRPOSettings) -> None:
    """Try the functions of a Custom objective on drawn data. Raises ObjectiveFailed, which names the line."""
    import torch

    source, given = Path(settings.objective.source), settings.model_copy(deep=True)
    modes = _torch_modes()
    functions_of(settings.objective)
    module = sys.modules[module_name(settings.objective.source)]
    for name in FUNCTIONS:
        function = getattr(module, name)
        try:
            inspect.signature(function).bind(None, settings)
        except TypeError as error:
            raise ObjectiveFailed(f"{line_of(source, function)}: {name} must have two parameters: {error}") from error
    _check_advantages(settings, at=line_of(source, module.advantages))
    at = line_of(source, module.loss)
    update = _drawn_update(settings)
    whole, again = (_gradient(update, settings, at=at) for _ in range(2))
    if not torch.equal(whole, again):
        raise ObjectiveFailed(f"{at}: loss must have the same gradient for the same input")
    if not whole.any():
        raise ObjectiveFailed(f"{at}: loss has no gradient: Terms.objective must depend on tokens.logprobs")
    for ratios in ("equal", "extreme"):  # the first update of a step has only ratios of 1
        _gradient(update, settings, at=at, ratios=ratios)
    # More ranks than rows: some have only padding.
    for ranks, budget, packed in ((2, 16, False), (2, 16, True), (len(update.rows) + 2, 16, True)):
        parts = _gradient(update, settings, at=at, ranks=ranks, budget=budget, packed=packed)
        if not torch.allclose(whole, parts, rtol=RTOL, atol=RTOL * float(whole.abs().mean())):
            raise ObjectiveFailed(
                f"{at}: loss depends on the packing: the gradient of a token differs between one micro-batch and "
                "several. Use the denominators of tokens.counts or tokens.weights(...), and tokens.sequence_mean for a "
                "mean over a sequence; no value may depend on the other sequences of the micro-batch, or on the number "
                "of a group"
            )
    if settings.importance_correction.drops_sequences:
        for dropped in (update.rows[::2], update.rows):  # all: the denominators are 0
            _gradient(update, settings, at=at, dropped=dropped)
    if not torch.equal(whole, _gradient_after_others(settings, at=at)):
        raise ObjectiveFailed(f"{source}: a result depends on earlier calls: keep no values between calls")
    if modes != _torch_modes():
        raise ObjectiveFailed(f"{source}: the file must not change the modes of torch, such as its default dtype")
    if settings != given:
        raise ObjectiveFailed(f"{source}: the functions must not change the settings")


def _torch_modes() -> tuple[object, ...]:
    """Return the modes of torch that change other code of the process."""
    import torch

    backends = torch.backends
    return (
        *(torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()),
        *(torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(), torch.is_anomaly_enabled()),
        # These round the products of the model.
        *(torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32),
        backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    )


def _gradient_after_others(settings: GRPOSettings, *, at: str) -> Tensor:
    """Import the file again, and return the gradient of the drawn update after calls in another order."""
    custom_functions.cache_clear()
    update = _drawn_update(settings)
    _gradient(update, settings, at=at, ratios="extreme")
    return _gradient(update, settings, at=at)


def _check_advantages(settings: GRPOSettings, *, at: str) -> None:
    """Call `advantages` for a group, for another one, and for the first one again; then for shaped rewards.

    One response is empty: a limit may stop a rollout before its first token.
    """
    functions = functions_of(settings.objective)
    shaped = settings.objective.overlong_penalty if settings.objective.overlong_buffer_ratio else 0.0
    first, lengths = [1.0, 0.0, 0.25, -shaped], [4, 9, 0, 30]
    groups = [first, [0.0, 1.0, 1.0, 1.0], first]
    if shaped:  # a group has different rewards, but the shaped ones may be equal, or have the mean 0
        groups += [[0.5, 0.5, 0.5, 0.5], [shaped / 2, -shaped / 2]]
    results = []
    for rewards in groups:
        size = len(rewards)
        group = GroupRewards(list(rewards), lengths[:size])
        results.append(functions.advantages(group, settings))
        if group != GroupRewards(list(rewards), lengths[:size]):
            raise ObjectiveFailed(f"{at}: advantages must not change the group in place")
    if results[0] != results[2]:
        raise ObjectiveFailed(f"{at}: advantages must return the same values for the same input")
    _check_order(settings, at=at)


def _check_order(settings: GRPOSettings, *, at: str) -> None:
    """Call `advantages` for rollouts in two orders. All rewards and lengths differ, so that no rank is ambiguous."""
    functions, rewards, lengths = functions_of(settings.objective), [0.75, 0.0, 0.25, 1.0], [4, 9, 1, 30]
    values = functions.advantages(GroupRewards(rewards, lengths), settings)
    turned = functions.advantages(GroupRewards(rewards[::-1], lengths[::-1]), settings)
    if not all(map(functools.partial(math.isclose, rel_tol=RTOL, abs_tol=RTOL), values, turned[::-1])):
        raise ObjectiveFailed(f"{at}: advantages must not depend on the order of the rollouts in their group")


@dataclass(frozen=True)
class _Update:
    """A drawn update: rows whose ids are unique, and log-probabilities [ids]."""

    rows: list[BatchRow]
    old: Tensor
    noise: Tensor
    """log pi - log pi_old of each id."""
    engine: Tensor
    reference: Tensor

    def new(self, ratios: str) -> Tensor:
        """Return log pi [ids]: with ratios of 1, beyond their limits, or drawn."""
        factors = {"equal": 0.0, "drawn": 1.0, "extreme": 4 * LOG_RATIO_LIMIT}
        return self.old + factors[ratios] * self.noise


def _drawn_update(settings: GRPOSettings) -> _Update:
    import numpy as np
    import torch

    from rstar2_train.trainer.batching import grpo_updates
    from rstar2_train.trainer.types import TokenSequence

    torch.manual_seed(0)
    at, groups = 1, []
    for lengths, rewards in zip(_LENGTHS, _REWARDS, strict=True):
        advantages = functions_of(settings.objective).advantages(GroupRewards(list(rewards), list(lengths)), settings)
        sequences = []
        for length, advantage in zip(lengths, advantages, strict=True):
            ids = np.arange(at, at + length + 2, dtype=np.int32)
            sequences.append(TokenSequence(ids, np.arange(len(ids)) >= 2, advantage=advantage))
            at += len(ids)
        groups.append(sequences)
    (update,) = grpo_updates(groups, updates=1, seed=0)
    old = -4 * torch.rand(at) - 0.1
    noise, engine, reference = 0.5 * torch.randn(3, at)
    return _Update([row for group in update for row in group], old, noise, old + 0.1 * engine, old + reference)


@contextmanager
def _unchanged(tokens: Tokens, at: str) -> Iterator[None]:
    """Check that a call changes neither the tensors of `tokens` nor the values that they have computed."""
    fields = {field.name: getattr(tokens, field.name) for field in dataclasses.fields(Tokens)}
    tensors = {name: value.detach().clone() for name, value in fields.items() if hasattr(value, "clone")}
    counts = dataclasses.replace(tokens.counts, group_tokens=tokens.counts.group_tokens.clone())
    copy = dataclasses.replace(tokens, **(tensors | {"counts": counts}))
    yield
    changed = [
        name
        for name, value in vars(tokens).items()
        if name != "counts" and not _equal(value, getattr(copy, name, None))
    ]
    changed += [
        f"counts.{field.name}"
        for field in dataclasses.fields(counts)
        if not _equal(getattr(tokens.counts, field.name), getattr(counts, field.name))
    ]
    if changed:
        raise ObjectiveFailed(f"{at}: loss must not change tokens.{changed[0]} in place")


def _equal(value: Any, other: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(value, other)
    return type(value) is type(other) and bool(value == other)


def _renumbered(rows: Sequence[BatchRow]) -> list[BatchRow]:
    """Return the rows in a drawn order, and the groups with their numbers reversed."""
    last = max(row.group for row in rows)
    drawn = random.Random(0).sample(rows, len(rows))
    return [dataclasses.replace(row, group=last - row.group) for row in drawn]


def _micro_batches(
    update: _Update,
    new: Tensor,
    shares: Sequence[Sequence[MicroBatch]],
    settings: GRPOSettings,
    dropped: Sequence[BatchRow],
) -> Iterator[tuple[Tokens, Tensor, Tensor | None]]:
    """Yield the tokens of each micro-batch, the engine's log-probabilities, and the tokens of dropped rows."""
    import torch

    from rstar2_train.trainer.objective_input import kept_counts, kept_sums, objective_tokens
    from rstar2_train.trainer.transfers import on_device

    cpu, gone = torch.device("cpu"), torch.zeros(len(new), dtype=torch.bool)
    for row in dropped:
        gone[torch.from_numpy(row.sequence.ids).long()] = True
    batches = [batch for share in shares for batch in on_device(share, cpu)]
    kept = torch.stack([kept_sums(batch, gone[batch.targets]) for batch in batches]).sum(dim=0)
    counts = kept_counts(kept, cpu) if dropped else None
    for batch in batches:
        old, engine, reference = (values[batch.targets] for values in (update.old, update.engine, update.reference))
        excluded = gone[batch.targets] if dropped else None
        known = reference if settings.reference_kl else None
        yield objective_tokens(batch, new[batch.targets], old, excluded, counts, known), engine, excluded


def _check_terms(tokens: Tokens, settings: GRPOSettings, *, at: str) -> None:
    """Check what the value and the gradient of the loss do not show."""
    import torch

    terms, again = (functions_of(settings.objective).loss(tokens, settings) for _ in range(2))
    if terms.weights[~tokens.trained].any():
        raise ObjectiveFailed(f"{at}: Terms.weights must be 0 where tokens.trained is False: padding does not train")
    if (terms.weights < 0).any():
        raise ObjectiveFailed(
            f"{at}: Terms.weights must not be negative: they are those of the KL term too; Terms.objective has the sign"
        )
    if terms.clipped is None or again.clipped is None:
        return
    if not (torch.isfinite(terms.clipped).all() and torch.equal(terms.clipped, again.clipped)):
        raise ObjectiveFailed(f"{at}: Terms.clipped must be finite, and the same for the same input")
    if ((terms.clipped < 0) | (terms.clipped > 1)).any():
        raise ObjectiveFailed(f"{at}: Terms.clipped must be True or False, or between 0 and 1: it is a share of tokens")


def _gradient(
    update: _Update,
    settings: GRPOSettings,
    *,
    at: str,
    ratios: str = "drawn",
    ranks: int = 1,
    budget: int = 10_000,
    packed: bool = True,
    dropped: Sequence[BatchRow] = (),
) -> Tensor:
    """Return the gradient of the loss by token id, summed over the micro-batches of all ranks.

    With several ranks the rows have a drawn order, and the groups other numbers. `dropped`: rows that leave the
    denominators.
    """
    import torch

    from rstar2_train.grpo_roc.loss import policy_loss
    from rstar2_train.trainer.batching import distribute_rows

    rows = _renumbered(update.rows) if ranks > 1 else update.rows
    new = update.new(ratios).clone().requires_grad_()
    shares = distribute_rows(rows, ranks=ranks, tokens_per_micro_batch=budget, packed=packed)
    total = torch.zeros(())
    for tokens, engine, excluded in _micro_batches(update, new, shares, settings, dropped):
        with _unchanged(tokens, at):
            _check_terms(tokens, settings, at=at)
        with _unchanged(tokens, at):
            part = policy_loss(tokens, settings, engine_logprobs=engine, excluded=excluded).loss
        if not torch.isfinite(part):
            raise ObjectiveFailed(
                f"{at}: the loss is {float(part)}{DROPPED if dropped else ''}: objective and weights must be finite"
            )
        total = total + part
    if new.grad is not None:
        raise ObjectiveFailed(f"{at}: loss must not compute gradients itself")
    if total.requires_grad:
        try:
            total.backward()
        except RuntimeError as error:
            raise ObjectiveFailed(f"{at}: the gradient of loss failed: {error}") from error
    gradient = torch.zeros_like(new) if new.grad is None else new.grad
    if not torch.isfinite(gradient).all():
        raise ObjectiveFailed(
            f"{at}: the gradient of loss is not finite {_WHERE[ratios]}: a division by 0, or the root of 0"
        )
    return gradient


def main(argv: list[str]) -> int:
    """Check the objective with each GRPOSettings of a JSON list on standard input; write {fault} to a descriptor."""
    import torch  # noqa: F401 (its import takes the time of the whole check, not of the calls)

    fault = ""
    documents = json.load(sys.stdin)
    faulthandler.dump_traceback_later(CALLS_SECONDS, exit=True)
    try:
        for document in documents:
            check_objective(GRPOSettings.model_validate(document))
    except ObjectiveFailed as error:
        fault = one_line(error, most=2000)
    faulthandler.cancel_dump_traceback_later()
    with os.fdopen(int(argv[0]), "w") as pipe:
        json.dump({"fault": fault}, pipe)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
