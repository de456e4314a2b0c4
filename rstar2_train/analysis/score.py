"""Token entropies of stored trajectories: one forward pass of a model over each, kept on disk for the next analysis.

Trajectories hold the log-probability of each sampled token, not the entropy of the distribution it was drawn from; that
takes the model. Logits exist a few hundred rows at a time (`train.logprobs`), never whole. What is computed is stored
by content (weights, tokens, temperature), a file a trajectory: an analysis that was killed goes on where it was, and
one that finds everything loads no model.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rstar2_train.analysis.sources import AnalysisError
from rstar2_train.evaluation.model_fingerprint import ModelIncomplete, fingerprint
from rstar2_train.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from rstar2_train.trainer.model import Policy

LOGIT_ROWS = 256
"""Rows of logits that exist at once: 150 MB in float32 for a vocabulary of 150,000."""


class Scorer:
    """A model folder, and what it has scored."""

    def __init__(self, model: Path, *, cache: Path, temperature: float) -> None:
        """`model`: Hugging Face folder with safetensors. `temperature`: of the distribution that was sampled from.

        Reads the whole folder once, to know its content. Raises AnalysisError when it holds no model.
        """
        self.model = model
        self.temperature = temperature
        try:
            self._folder = cache / fingerprint(model)
        except ModelIncomplete as error:
            raise AnalysisError(str(error)) from error
        self._policy: Policy | None = None

    def score(self, trajectory: Trajectory) -> NDArray[np.float32]:
        """[2, model tokens]: log-probabilities and entropies in nats, in the order of the trajectory's model tokens.

        Raises AnalysisError when the model cannot score it.
        """
        ids, mask, _ = trajectory.response()
        sequence = np.asarray([*trajectory.prompt_ids, *ids], dtype=np.int32)
        learned = np.flatnonzero(np.asarray([0] * len(trajectory.prompt_ids) + mask))
        key = hashlib.blake2b(f"{self.temperature!r} {learned.tolist()}".encode(), digest_size=16)
        key.update(sequence.tobytes())
        file = self._folder / f"{key.hexdigest()}.npy"
        found = _read(file, len(learned))
        if found is None:
            found = self._compute(sequence, learned)
            _write(file, found)
        return found

    def _compute(self, sequence: NDArray[np.int32], learned: NDArray[np.intp]) -> NDArray[np.float32]:
        import torch

        policy = self._policy = self._policy or _load(self.model)
        table = policy.model.get_input_embeddings().weight
        if len(sequence) and int(sequence.max()) >= len(table):
            raise AnalysisError(
                f"{self.model} is not a model of this job: it has {len(table)} tokens, the trajectories have token "
                f"{int(sequence.max())}"
            )
        ids = torch.from_numpy(sequence.astype(np.int64)).to(table.device)
        chosen = torch.from_numpy(learned).to(table.device)
        try:
            with torch.inference_mode():
                logprobs, entropies = policy(
                    ids=ids[None], positions=chosen - 1, targets=ids[chosen], temperature=self.temperature
                )
        except RuntimeError as error:  # out of memory, above all
            raise AnalysisError(f"{self.model} cannot score a trajectory of {len(sequence)} tokens: {error}") from error
        return torch.stack([logprobs, entropies]).float().cpu().numpy()


def _load(model: Path) -> Policy:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from rstar2_train.trainer import device
    from rstar2_train.trainer.model import Policy

    logging.disable_progress_bar()  # ours is on the terminal
    compute = device.select_device("NVIDIA" if torch.cuda.is_available() else "None")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            model, dtype=compute.dtype, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise AnalysisError(f"{model} cannot be loaded as a causal language model: {error}") from error
    return Policy(loaded.to(compute.device).eval(), chunk=LOGIT_ROWS)


def _read(file: Path, tokens: int) -> NDArray[np.float32] | None:
    """What was stored, or None where there is nothing, or nothing whole."""
    try:
        stored = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return stored if stored.shape == (2, tokens) else None


def _write(file: Path, values: NDArray[np.float32]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with aside.open("wb") as stream:
            np.save(stream, values)
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
