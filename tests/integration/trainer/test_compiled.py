"""Compiled layers of a packed policy: with and without checkpointing, for any number of sequences."""

from __future__ import annotations

from collections import Counter
from functools import partialmethod
from pathlib import Path

import pytest
import torch
from models import rank_here, rollout_groups
from torch._dynamo.utils import counters

from rstar2_train.api.stages import GRPOSettings
from rstar2_train.capacity.layout import Layout
from rstar2_train.trainer import step
from rstar2_train.trainer.batching import distribute_rows, grpo_updates
from rstar2_train.trainer.model import load_policy


@pytest.mark.parametrize("unchecked", [0, 2], ids=["checkpointed", "kept"])
def test_compiled_layers_stay_compiled(model_dir: Path, unchecked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All parts but attention are compiled, for more numbers of sequences than torch would compile one by one."""
    # The graphs are not translated to machine code: that takes a minute, and does not depend on the sequences.
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    torch.compiler.reset()
    counters.clear()
    (update,) = grpo_updates(rollout_groups(9, 4), updates=1, seed=0)
    rows = [row for group in update for row in group]
    layout = Layout(ranks=1, shards=1, tokens=256, unchecked=unchecked)
    sequences = set()
    with rank_here(None) as rank, torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        device = rank.compute.device
        policy = load_policy(model_dir, compute=rank.compute, chunk=16, layout=layout, packed=True, compiled=True)
        for tokens in range(20, 220, 16):
            batches = distribute_rows(rows, ranks=1, tokens_per_micro_batch=tokens, packed=True)[0]
            sequences |= {len(batch.lengths or ()) for batch in batches}
            step.grpo_backward(policy, batches, device, settings=GRPOSettings(), start=None)
    assert len(sequences) > torch._dynamo.config.recompile_limit
    frames = Counter(counters["frames"])
    assert frames["ok"] == frames["total"]
    assert counters["stats"]["calls_captured"] > 100
