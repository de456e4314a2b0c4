"""Entropies of stored trajectories: right, kept, and never of another model."""

from pathlib import Path

import numpy as np
import pytest

from rstar2_train.analysis import score
from rstar2_train.analysis.score import Scorer
from rstar2_train.analysis.sources import AnalysisError

from .conftest import Rollout


def test_the_values_are_those_of_the_plain_computation(model_folder: Path, rollout: Rollout, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    trajectory = rollout()
    found = Scorer(model_folder, cache=tmp_path, temperature=0.7).score(trajectory)
    ids, mask, _ = trajectory.response()
    sequence = torch.tensor([trajectory.prompt_ids + ids])
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    with torch.no_grad():
        log_p = torch.log_softmax(model(sequence).logits[0, :-1] / 0.7, dim=-1)
    sampled = torch.tensor([0] * len(trajectory.prompt_ids) + mask)[1:] == 1
    logprobs = log_p.gather(1, sequence[0, 1:, None])[sampled, 0]
    entropies = -(log_p.exp() * log_p).sum(-1)[sampled]
    np.testing.assert_allclose(found, torch.stack([logprobs, entropies]).numpy(), atol=1e-4)


def test_what_was_scored_needs_no_model(
    model_folder: Path, rollout: Rollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Scorer(model_folder, cache=tmp_path, temperature=1.0).score(rollout())

    def load(model: Path) -> None:
        raise AssertionError("loaded again")

    monkeypatch.setattr(score, "_load", load)
    again = Scorer(model_folder, cache=tmp_path, temperature=1.0)
    np.testing.assert_array_equal(again.score(rollout(kept=True)), first)
    for other in (rollout(thought="Since"), rollout(prompt_ids=[1, 2])):
        with pytest.raises(AssertionError, match="loaded again"):
            again.score(other)
    with pytest.raises(AssertionError, match="loaded again"):
        Scorer(model_folder, cache=tmp_path, temperature=0.5).score(rollout())


def test_a_torn_file_is_computed_again(model_folder: Path, rollout: Rollout, tmp_path: Path) -> None:
    scorer = Scorer(model_folder, cache=tmp_path, temperature=1.0)
    first = scorer.score(rollout())
    [kept] = tmp_path.rglob("*.npy")
    whole = kept.read_bytes()
    for torn in (whole[: len(whole) // 2], b"", b"not an array"):
        kept.write_bytes(torn)
        np.testing.assert_array_equal(scorer.score(rollout()), first)
        assert kept.read_bytes() == whole
    assert [one.name for one in kept.parent.iterdir()] == [kept.name]


def test_what_is_no_model_of_the_job_is_refused(model_folder: Path, rollout: Rollout, tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"no model in this folder; config\.json and"):
        Scorer(tmp_path, cache=tmp_path, temperature=1.0)
    with pytest.raises(
        AnalysisError, match="is not a model of this job: it has 640 tokens, the trajectories have token 640"
    ):
        Scorer(model_folder, cache=tmp_path, temperature=1.0).score(rollout(prompt_ids=[640]))


def test_the_fingerprint_is_of_the_content(model_folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((model_folder / name).read_bytes())
    assert score.fingerprint(tmp_path) == score.fingerprint(model_folder)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert score.fingerprint(tmp_path) != score.fingerprint(model_folder)
