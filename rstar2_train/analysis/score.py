"""Computes token entropies of stored trajectories by a forward pass of a model, and caches them on disk.

Trajectories have the log-probability of each sampled token, but not the entropy of its distribution, which needs the
model. At most a few hundred rows of logits are in memory (`trainer/logprobs.py`). The cache has one file per
trajectory, with a key of weights, tokens and temperature: an interrupted analysis resumes, and a complete one loads no
model.
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
from rstar2_train.trainer.types import TokenSequence

if TYPE_CHECKING:
    from rstar2_train.trainer.model import Policy

LOGIT_ROWS = 256
"""Rows of logits in memory: 150 MB in float32 for a vocabulary of 150,000."""


class Scorer:
    """Scores trajectories with one model."""

    def __init__(self, model: Path, *, cache: Path, temperature: float) -> None:
        """`model`: Hugging Face folder with safetensors. `cache`: folder of the cached values. `temperature`: sampling
        temperature of the trajectories.

        Reads all files of the model once for its fingerprint. Raises AnalysisError if the folder has no model.
        """
        self.model = model
        self.temperature = temperature
        try:
            self._folder = cache / fingerprint(model)
        except ModelIncomplete as error:
            raise AnalysisError(str(error)) from error
        self._policy: Policy | None = None

    def score(self, trajectory: Trajectory) -> NDArray[np.float32]:
        """Return [2, model tokens]: log-probabilities and entropies in nats, in the order of the model tokens.

        Raises AnalysisError if the model cannot score the trajectory.
        """
        return np.concatenate([self._score(sequence) for sequence in trajectory.sequences()], axis=1)

    def _score(self, tokens: TokenSequence) -> NDArray[np.float32]:
        sequence, learned = tokens.ids, np.flatnonzero(tokens.mask)
        key = hashlib.blake2b(f"{self.temperature!r} {learned.tolist()}".encode(), digest_size=16)
        key.update(sequence.tobytes())
        file = self._folder / f"{key.hexdigest()}.npy"
        values = _read_cached(file, len(learned))
        if values is None:
            values = self._compute(sequence, learned)
            _write_cached(file, values)
        return values

    def _compute(self, sequence: NDArray[np.int32], learned: NDArray[np.intp]) -> NDArray[np.float32]:
        import torch

        policy = self._policy = self._policy or _load_policy(self.model)
        table = policy.model.get_input_embeddings().weight
        if len(sequence) and int(sequence.max()) >= len(table):
            raise AnalysisError(
                f"{self.model} is not a model of this job: its vocabulary has {len(table)} tokens, but a trajectory "
                f"contains token {int(sequence.max())}"
            )
        ids = torch.from_numpy(sequence.astype(np.int64)).to(table.device)
        chosen = torch.from_numpy(learned).to(table.device)
        try:
            with torch.inference_mode():
                logprobs, entropies = policy(
                    ids=ids[None], positions=chosen - 1, targets=ids[chosen], temperature=self.temperature
                )
        except RuntimeError as error:  # usually out of memory
            raise AnalysisError(f"{self.model} cannot score a trajectory of {len(sequence)} tokens: {error}") from error
        return torch.stack([logprobs, entropies]).float().cpu().numpy()


def _load_policy(model: Path) -> Policy:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from rstar2_train.trainer import device
    from rstar2_train.trainer.model import Policy

    logging.disable_progress_bar()  # the command has its own progress bar
    accelerated = torch.cuda.is_available()
    compute = device.select_device("NVIDIA" if accelerated else "None", dtype="BFloat16" if accelerated else "Float32")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            model, dtype=compute.dtype, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise AnalysisError(f"{model}: cannot load a causal language model: {error}") from error
    return Policy(loaded.to(compute.device).eval(), chunk=LOGIT_ROWS)


def _read_cached(file: Path, tokens: int) -> NDArray[np.float32] | None:
    """Return the cached values, or None if the file is missing or damaged."""
    try:
        stored = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return stored if stored.shape == (2, tokens) else None


def _write_cached(file: Path, values: NDArray[np.float32]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with aside.open("wb") as stream:
            np.save(stream, values)
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
