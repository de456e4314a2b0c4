"""The tokenised demonstrations of an SFT stage, in a folder that later attempts map into memory.

The folder is written as a whole (`checkpoint.write_folder`). Its manifest has the digest of its files, and a key: the
digest of data, tokenizer and chat template. A folder with another key or digest is replaced.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rstar2_train.data.demonstrations import read_demonstrations
from rstar2_train.data.readers import DataError, reading
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.trainer.checkpoint import remove_asides, write_folder
from rstar2_train.trainer.types import TokenSequence
from rstar2_train.utils.files import file_sha256

log = logging.getLogger(__name__)

VERSION = 3
TOKENS, ENDS, LEVELS, MANIFEST = "tokens.bin", "ends.npy", "levels.npy", "manifest.json"
LEARNED = np.uint32(1 << 31)
"""The bit of a stored token that marks a trained one."""
_CHUNK_BYTES = 1 << 24
_REPORT_ROWS = 64
"""Demonstrations between two reports."""


@dataclass(frozen=True, slots=True)
class TokenCache:
    """Tokenised demonstrations, one after another."""

    tokens: NDArray[np.uint32]
    """Token ids, with the bit LEARNED for trained tokens; mapped into memory."""
    ends: NDArray[np.int64]
    """Position in `tokens` after each demonstration."""
    levels: NDArray[np.int32]
    """Difficulty of each demonstration; 0: none."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each demonstration."""
        return np.diff(self.ends, prepend=0)

    def example(self, index: int) -> TokenSequence:
        """Return a demonstration."""
        stored = self.tokens[self.ends[index - 1] if index else 0 : self.ends[index]]
        return TokenSequence((stored & ~LEARNED).astype(np.int32), (stored & LEARNED) > 0)


def load_tokens(
    folder: Path, data: Path, chat_format: ChatFormat, *, report: Callable[[int, int], None] = lambda *_: None
) -> TokenCache:
    """Return the tokenised demonstrations of `data`; tokenise them into `folder` if it does not hold them.

    Args:
        folder: the cache; only one process may use it at a time.
        data: the demonstrations.
        chat_format: tokenizer and chat template.
        report: called with the numbers of tokenised demonstrations and of all; 0: unknown. May raise to stop.

    Raises:
        DataError: for a row that is invalid, or that the chat template cannot render.
        StageFailed: StorageFull.
    """
    digest, rows = _digest_rows(data)
    key = hashlib.sha256(json.dumps([VERSION, digest, chat_format.fingerprint()]).encode()).hexdigest()
    cache = _read(folder, key)
    if cache is None:
        started = time.monotonic()
        remove_asides(folder.parent)
        with write_folder(folder, durable=False) as aside:
            _tokenize(aside, data, chat_format, lambda done: report(done, rows))
            (aside / MANIFEST).write_text(json.dumps({"key": key, "digest": _digest(aside)}))
        cache = _read(folder, key)
        assert cache is not None
        log.info("tokenised %d demonstrations in %.0f s", len(cache.ends), time.monotonic() - started)
    return cache


def _tokenize(folder: Path, data: Path, chat_format: ChatFormat, report: Callable[[int], None]) -> None:
    ends, levels, position = [], [], 0
    with (folder / TOKENS).open("wb") as file:
        for index, row in enumerate(read_demonstrations(data)):
            try:
                encoded = chat_format.encode_demonstration(row.messages, row.tools)
            except ChatFormatError as error:
                raise DataError(f"{row.where}: {error}") from error
            tokens = np.array(encoded.token_ids, dtype=np.uint32)
            tokens |= np.array(encoded.mask, dtype=np.uint32) * LEARNED
            file.write(tokens.tobytes())
            position += len(tokens)
            ends.append(position)
            levels.append(row.level)
            if index % _REPORT_ROWS == 0:
                report(index + 1)
    report(len(ends))
    np.save(folder / ENDS, np.array(ends, dtype=np.int64))
    np.save(folder / LEVELS, np.array(levels, dtype=np.int32))


def _read(folder: Path, key: str) -> TokenCache | None:
    """Return the content of a cache with this key; None if there is none, or if it is damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["key"] != key:
            log.info("%s: data, tokenizer or chat template have changed: tokenising again", folder)
            return None
        if manifest["digest"] != _digest(folder):
            raise ValueError("its content differs from its manifest")
        ends, levels = np.load(folder / ENDS), np.load(folder / LEVELS)
        return TokenCache(np.memmap(folder / TOKENS, dtype=np.uint32, mode="r"), ends, levels)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be used: %s; tokenising again", folder, error)
        return None


def _digest(folder: Path) -> str:
    """Return the SHA-256 of the files of a cache."""
    digests = "".join(file_sha256(folder / name) for name in (TOKENS, ENDS, LEVELS))
    return hashlib.sha256(digests.encode()).hexdigest()


def _digest_rows(data: Path) -> tuple[str, int]:
    """Return the SHA-256 of a data file, and its number of lines if it has a row per line, else 0."""
    digest, lines = hashlib.sha256(), 0
    with reading(data), data.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            lines += chunk.count(b"\n")
    return digest.hexdigest(), lines if data.suffix == ".jsonl" else 0
