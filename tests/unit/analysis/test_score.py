"""Entropies of stored trajectories: correct, cached, and never those of another model."""

from pathlib import Path

import numpy as np
import pytest

from rstar2_train.analysis import score
from rstar2_train.analysis.score import Scorer
from rstar2_train.analysis.sources import AnalysisError
from tests.support.token_arrays import response
from tests.support.trajectory_job import Rollout


def test_score_equals_direct_computation(model_folder: Path, rollout: Rollout, tmp_path: Path) -> None:
    """The values equal a direct computation with all logits."""
    import torch
    from transformers import AutoModelForCausalLM

    trajectory = rollout()
    values = Scorer(model_folder, cache=tmp_path, temperature=0.7).score(trajectory)
    ids, mask, _ = response(trajectory)
    sequence = torch.tensor([[*trajectory.prompt_ids, *ids]])
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    with torch.no_grad():
        log_p = torch.log_softmax(model(sequence).logits[0, :-1] / 0.7, dim=-1)
    sampled = torch.tensor([0] * len(trajectory.prompt_ids) + mask)[1:] == 1
    logprobs = log_p.gather(1, sequence[0, 1:, None])[sampled, 0]
    entropies = -(log_p.exp() * log_p).sum(-1)[sampled]
    np.testing.assert_allclose(values, torch.stack([logprobs, entropies]).numpy(), atol=1e-4)


def test_score_of_cached_trajectory_loads_no_model(
    model_folder: Path, rollout: Rollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached values need no model. Other tokens or another temperature do."""
    first = Scorer(model_folder, cache=tmp_path, temperature=1.0).score(rollout())

    def load(model: Path) -> None:
        raise AssertionError("loaded again")

    monkeypatch.setattr(score, "_load_policy", load)
    second = Scorer(model_folder, cache=tmp_path, temperature=1.0)
    np.testing.assert_array_equal(second.score(rollout(kept=True)), first)
    for other in (rollout(thought="Since"), rollout(prompt_ids=[1, 2])):
        with pytest.raises(AssertionError, match="loaded again"):
            second.score(other)
    with pytest.raises(AssertionError, match="loaded again"):
        Scorer(model_folder, cache=tmp_path, temperature=0.5).score(rollout())


def test_score_with_damaged_cache_file_recomputes(model_folder: Path, rollout: Rollout, tmp_path: Path) -> None:
    """A damaged cache file is replaced."""
    scorer = Scorer(model_folder, cache=tmp_path, temperature=1.0)
    first = scorer.score(rollout())
    [cached] = tmp_path.rglob("*.npy")
    complete = cached.read_bytes()
    for torn in (complete[: len(complete) // 2], b"", b"not an array"):
        cached.write_bytes(torn)
        np.testing.assert_array_equal(scorer.score(rollout()), first)
        assert cached.read_bytes() == complete
    assert [path.name for path in cached.parent.iterdir()] == [cached.name]


def test_score_with_other_model_raises(model_folder: Path, rollout: Rollout, tmp_path: Path) -> None:
    """A folder without a model, or a model with another vocabulary, is an error."""
    with pytest.raises(AnalysisError, match=r"no model in this folder; config\.json and"):
        Scorer(tmp_path, cache=tmp_path, temperature=1.0)
    with pytest.raises(
        AnalysisError,
        match="is not a model of this job: its vocabulary has 640 tokens, but a trajectory contains token 640",
    ):
        Scorer(model_folder, cache=tmp_path, temperature=1.0).score(rollout(prompt_ids=[640]))


def test_fingerprint_depends_on_content(model_folder: Path, tmp_path: Path) -> None:
    """The fingerprint depends on the content of the files, not on the folder."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((model_folder / name).read_bytes())
    assert score.fingerprint(tmp_path) == score.fingerprint(model_folder)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert score.fingerprint(tmp_path) != score.fingerprint(model_folder)
