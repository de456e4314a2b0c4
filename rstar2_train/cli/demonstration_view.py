"""Prints a demonstration as the tokens of a model, with the trained ones marked (`rstar2 data inspect --model`).

Each line has a part of one kind: trained tokens behind `>`, others behind a space. On a terminal, trained tokens are
also green. Tokens are separated by `|`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from rstar2_train.data.demonstrations import Demonstration, read_demonstration
from rstar2_train.data.prepare.config import PrepareSettings
from rstar2_train.data.prepare.pipeline import convert_row
from rstar2_train.data.prepare.records import DatasetLayout, RemovedRow
from rstar2_train.data.readers import DataError, read_rows
from rstar2_train.utils.text import printable

if TYPE_CHECKING:
    from rstar2_train.rollout.chat_format import ChatFormat

_SEPARATOR, _BREAK = "|", "\u23ce"


def print_demonstration(files: Sequence[Path], *, layout: DatasetLayout | None, model: Path, row: int) -> None:
    """Print row number `row` of the files as tokens. Raises DataError for a row that cannot be trained on."""
    from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError

    demonstration = find_demonstration(files, layout=layout, row=row)
    try:
        chat_format = ChatFormat.load(model)
        encoded = chat_format.encode_demonstration(demonstration.messages, demonstration.tools)
    except ChatFormatError as error:
        raise DataError(f"{demonstration.where}: {error}") from error
    trained, total = sum(encoded.mask), len(encoded.mask)
    print(f"{demonstration.where}: {total:,} tokens, {trained:,} trained (lines with >)")
    console = Console(soft_wrap=True, highlight=False)
    for is_trained, tokens in token_lines(chat_format, encoded.token_ids, encoded.mask):
        line = Text("> " if is_trained else "  ", style="bold green" if is_trained else "")
        for at, token in enumerate(tokens):
            line.append(_SEPARATOR if at else "", style="dim")
            line.append(token)
        console.print(line)


def find_demonstration(files: Sequence[Path], *, layout: DatasetLayout | None, row: int) -> Demonstration:
    """Return row number `row` (from 1) of the files, converted by the layout. Raises DataError."""
    read = layout.read if layout else read_rows
    rows = ((f"{path}:{line}", source) for path in files for line, source in read(path))
    where, source = next(itertools.islice(rows, row - 1, None), ("", None))
    if source is None:
        raise DataError(f"{files[0]}: no row {row}; set a smaller --row")
    converted = convert_row(layout, source, where, max_digits=PrepareSettings().max_digits) if layout else source
    if isinstance(converted, RemovedRow):
        raise DataError(f"{where}: the rule {converted.rule} removes the row: {converted.reason}")
    return read_demonstration(converted, where)


def token_lines(
    chat_format: ChatFormat, token_ids: Sequence[int], mask: Sequence[int]
) -> Iterator[tuple[bool, list[str]]]:
    """Yield lines of tokens: whether they are trained, and their texts. A line ends after a line break."""
    line: list[str] = []
    for at, (token, bit) in enumerate(zip(token_ids, mask, strict=True)):
        text = chat_format.decode([token])
        if "\ufffd" in text:  # a part of a character
            text = str(chat_format.tokenizer.convert_ids_to_tokens(token))
        line.append(printable(text.replace("\n", _BREAK)))
        if text.endswith("\n") or at + 1 == len(mask) or mask[at + 1] != bit:
            yield bool(bit), line
            line = []
