"""The layout of IFEval's published rows."""

from __future__ import annotations

from typing import Any

from rstar2_train.benchmarks.ifeval.instructions import read_instructions
from rstar2_train.data.prepare.records import DatasetLayout, RemovedRow, Row
from rstar2_train.data.readers import DataError, check_written, first_text, is_gap, text_field


def convert(row: dict[str, Any], where: str) -> Row | RemovedRow:
    """Convert a row with lists of instructions and their arguments. Its id is `key`."""
    prompt, names, arguments = first_text(row, where, "prompt"), row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(names, list) or not isinstance(arguments, list) or len(names) != len(arguments):
        raise DataError(f"{where}: instruction_id_list and kwargs must be lists of the same length")
    if not check_written(prompt, f"{where}: prompt").strip():
        return RemovedRow("no-problem", "the text is empty")
    try:
        pairs = zip(names, arguments, strict=True)
        instructions = read_instructions([{**(kwargs or {}), "id": name} for name, kwargs in pairs])
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: {error}") from error
    converted = [{"id": instruction.id, **instruction.arguments} for instruction in instructions]
    identity = {} if is_gap(row.get("key")) else {"id": text_field(row, "key", where)}
    return {"problem": prompt, "instructions": converted} | identity


PLUGIN = DatasetLayout(
    "ifeval", "google/IFEval", "benchmark", ("key", "prompt", "instruction_id_list", "kwargs"), convert
)
