"""Writes the tokenizer of a model folder: bytes, three special tokens and a chat template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.chat_templates import CHATML

TOKENS = 259
"""Tokens of the tokenizer: 256 bytes, then SPECIAL."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_tokenizer(
    folder: Path, *, template: Any = CHATML, change: Callable[[Any], object] = lambda _: None, **fields: Any
) -> Path:
    """Write tokenizer.json and tokenizer_config.json into a folder, and return it.

    `template`: None omits it. `change`: called with the tokenizer before it is saved. `fields`: of the config.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    change(tokenizer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    config |= ({} if template is None else {"chat_template": template}) | fields
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
