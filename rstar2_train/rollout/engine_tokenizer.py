"""The tokenizer that engines, and other programs, build for a model folder: that of AutoTokenizer of transformers.

It may be a class of transformers that takes only the vocabulary of `tokenizer.json`, and splits texts in its own way.
Rollouts are not affected: engines get and return token ids. A teacher of the job is asked for the tokens of texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rstar2_train.capacity.config_file import TOKENIZER
from rstar2_train.rollout.teacher_check import TEXTS
from rstar2_train.rollout.template_file import ChatFormatError
from rstar2_train.rollout.tokenizer_files import whole_text
from rstar2_train.utils.text import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE_CLASS = "PreTrainedTokenizerFast"
"""The class of transformers that reads tokenizer.json as it is."""


def find_difference(folder: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return how the tokens of texts differ from those of tokenizer.json for programs with AutoTokenizer; else empty.

    `tokenizer`: that of the folder, as `load_tokenizer` reads it. Raises ChatFormatError for a folder with which no
    engine starts.
    """
    own, other = whole_text(tokenizer), _auto_tokenizer(folder)
    for text in TEXTS:
        try:
            ids = other.encode(text, add_special_tokens=False)
        except Exception:  # tokenizers raises its errors as plain Exception: no token for a part of the text
            ids = []
        if ids != own.encode(text, add_special_tokens=False).ids:
            return (
                f"{type(other).__name__}, the class that AutoTokenizer chooses, has other tokens than {TOKENIZER}, "
                f"such as those of {text[:20]!r}"
            )
    return ""


def _auto_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of an engine. Raises ChatFormatError if there is none."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # each class raises errors of its own
        raise ChatFormatError(
            f"{folder}: no engine starts, because AutoTokenizer of transformers cannot read the tokenizer: "
            f"{type(error).__name__}: {one_line(error, most=300).rstrip('.')}; set tokenizer_class in "
            f"tokenizer_config.json to {FILE_CLASS}, and remove auto_map there"
        ) from error
    return tokenizer
