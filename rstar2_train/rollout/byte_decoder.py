"""Decodes the tokens of a byte-level vocabulary, such as that of Qwen, without the tokenizer: one look-up per token.

The tokenizer maps each token's characters to bytes again in every call, which costs a multiple of reading the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class ByteDecoder:
    """The bytes of each token of a vocabulary."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        """`vocabulary`: id of each token, in the characters by which a byte-level vocabulary writes bytes."""
        characters = _byte_characters()
        self._bytes = np.full(max(vocabulary.values(), default=-1) + 1, b"", dtype=object)
        for token, number in vocabulary.items():
            self._bytes[number] = _token_bytes(token, characters)

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> ByteDecoder | None:
        """Return the decoder of a tokenizer; None if its vocabulary is not byte-level."""
        from tokenizers.decoders import ByteLevel

        if not isinstance(tokenizer.decoder, ByteLevel):
            return None
        return cls(tokenizer.get_vocab(with_added_tokens=True))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids. Unknown ids have none; invalid UTF-8 becomes U+FFFD, as in the tokenizer."""
        ids: npt.NDArray[np.signedinteger[Any]]
        if isinstance(token_ids, array) and token_ids.typecode == "i":
            ids = np.frombuffer(token_ids, np.intc)  # no copy
        else:
            ids = np.asarray(token_ids, np.intp)
        try:
            tokens = self._bytes.take(ids)
        except IndexError:
            tokens = self._bytes.take(ids[ids < len(self._bytes)])
        return b"".join(tokens.tolist()).decode("utf-8", errors="replace")


def _byte_characters() -> dict[int, int]:
    """Return, for `str.translate`, the byte that each character of a byte-level vocabulary stands for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {256 + at: byte for at, byte in enumerate(others)}


def _token_bytes(token: str, characters: dict[int, int]) -> bytes:
    """Return the bytes of a token; an added token with other characters stands for itself."""
    if any(ord(character) not in characters for character in token):
        return token.encode()
    return token.translate(characters).encode("latin-1")
