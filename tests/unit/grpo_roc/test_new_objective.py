"""A new objective is one file and one line of the registry."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rstar2_train.api.objectives import OBJECTIVES
from rstar2_train.api.validation import check
from rstar2_train.grpo_roc import objectives
from tests.support.drawn_updates import draw_update, parts_of, settings_of
from tests.support.good_manifest import changed

OPO = '''
"""OPO: the baseline of least variance, the mean reward weighted by length."""

def advantages(group, settings):
    baseline = sum(map(float.__mul__, group.rewards, map(float, group.lengths))) / sum(group.lengths)
    return [reward - baseline for reward in group.rewards]

def loss(tokens, settings):
    from rstar2_train.grpo_roc.tokens import Terms
    bound = tokens.ratio.clamp(max=1 + settings.objective.clip_high)
    return Terms(bound * tokens.advantages, tokens.weights("TokenMean"))
'''


def test_new_objective_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifest, rules, defaults, advantages and loss work for a type that is only in the registry and in its file."""
    (tmp_path / "opo.py").write_text(OPO)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(tmp_path)])
    monkeypatch.setitem(OBJECTIVES, "OPO", {"clip_high": 0.5})

    job, issues = check(changed("spec.grpo.objective", {"type": "OPO"}))
    assert job is not None, issues
    assert job.grpo_settings(job.stage("rl")).objective.clip_high == 0.5
    _, issues = check(changed("spec.grpo.objective", {"type": "OPO", "clipLow": 0.1}))
    assert any("clipLow" in str(issue) and "only allowed if type is" in str(issue) for issue in issues)

    update = draw_update(0, settings_of("OPO"), spread=1.0)
    _, gradient = parts_of(update)
    tokens = sum(len(each.new) for each in update.rollouts)
    expected = []
    for rollout in update.rollouts:
        group = update.groups[rollout.group]
        baseline = sum(each.reward * len(each.mask) for each in group) / sum(len(each.mask) for each in group)
        ratio = (rollout.new.double() - rollout.old.double()).exp()
        expected.append(-torch.where(ratio < 1.5, ratio, 0.0) * (rollout.reward - baseline) / tokens)
    torch.testing.assert_close(gradient.double(), torch.cat(expected), rtol=1e-6, atol=1e-12)
