"""Reads the rows of Parquet and Arrow files as values of JSON. One batch is in memory at a time.

Arrow has one type per column: a struct has the keys of all rows, and null where a row has none. Such keys are left
out. A value without a form in JSON, such as a timestamp, becomes `Unreadable`: a row is refused only where the value
is used, with its column and type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2_train.data.json_values import json_decoder
from rstar2_train.data.readers import DataError
from rstar2_train.utils.spelling import spelled

if TYPE_CHECKING:
    import pyarrow

BATCH_ROWS = 1024
_FILE_MARK = b"ARROW1"
"""First bytes of Arrow's file format."""
_NULL_OF_FIXED_SIZE = "Expected all lists to be of size"
"""Message of pyarrow for a null in a column of lists of fixed size: the reader of Parquet expects items there."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A value without a form in JSON."""

    type: str
    """Type in Arrow's notation, or the fault."""
    text: str = ""
    """The value for people."""

    def __repr__(self) -> str:
        return f"a value of type {self.type}"

    def __str__(self) -> str:
        return self.text or repr(self)


def read_arrow_rows(path: Path, columns: Sequence[str] | None, also: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `.parquet` or `.arrow` file. `columns`, `also`: as of `read_rows`. Raises DataError."""
    try:
        import pyarrow.ipc
        import pyarrow.lib
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: pyarrow is not installed; run pip install 'rstar2[train]'") from error

    kind = "Parquet" if path.suffix == ".parquet" else "Arrow"
    try:
        if kind == "Arrow":
            with pyarrow.memory_map(str(path)) as source, _open_arrow(source) as (schema, batches):
                names = _selected(schema.names, columns, also, path)
                for batch in batches:
                    yield from _rows(batch.select(names), path)
            return
        with pyarrow.parquet.ParquetFile(path) as file:
            names, number = _selected(file.schema_arrow.names, columns, also, path), 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
                yield from _rows(batch, path)
                number += batch.num_rows
    except pyarrow.lib.ArrowInvalid as error:
        if _NULL_OF_FIXED_SIZE not in str(error):
            raise DataError(f"{path}: not a readable {kind} file: {error}") from error
        fixed = [field.name for field in file.schema_arrow if field.name in names and "fixed_size" in str(field.type)]
        raise DataError(
            f"{path}: {' or '.join(fixed)} has null in place of a list of fixed size after row {number}, which pyarrow "
            "does not read from Parquet: write the column as a list of any size"
        ) from error
    except (pyarrow.lib.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable {kind} file: {error}") from error


@contextmanager
def _open_arrow(source: pyarrow.MemoryMappedFile) -> Iterator[tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]]:
    """Yield schema and batches of a file in Arrow's stream format, or in its file format with a footer."""
    import pyarrow.ipc

    has_footer = source.read(len(_FILE_MARK)) == _FILE_MARK
    source.seek(0)
    if not has_footer:
        with pyarrow.ipc.open_stream(source) as stream:
            yield stream.schema, iter(stream)
        return
    with pyarrow.ipc.open_file(source) as file:
        yield file.schema, map(file.get_batch, range(file.num_record_batches))


def _selected(names: list[str], columns: Sequence[str] | None, also: Sequence[str], path: Path) -> list[str]:
    """Return the names that are `columns` or `also` in any spelling: a row with another spelling is refused.

    If none is one of `columns`, all names are returned: the error for the row then lists the existing fields.
    """
    if repeated := next((name for name in names if names.count(name) > 1), ""):
        raise DataError(f"{path}: two columns have the same name {repeated!r}; rename one")
    if not any(spelled(names, tuple(columns or ()))):
        return names
    return [name for name, _ in spelled(names, (*(columns or ()), *also))]


def column_names(path: Path, read: Iterable[str]) -> list[str]:
    """Return the names of all columns of a file that was read. `read`: the names in its rows, all of a text file."""
    if path.suffix not in (".parquet", ".arrow"):
        return list(read)
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_schema(path).names)
    with pyarrow.memory_map(str(path)) as source, _open_arrow(source) as (schema, _):
        return list(schema.names)


def _rows(batch: pyarrow.RecordBatch, path: Path) -> Iterator[dict[str, Any]]:
    values = [_values(column) for column in batch.columns]
    names = batch.schema.names
    for number in range(batch.num_rows):
        yield {name: column[number] for name, column in zip(names, values, strict=True)}


def _values(array: pyarrow.Array) -> list[Any]:
    """Return the values of an array: of a struct without its null keys, of a map as an object."""
    import pyarrow.compute
    from pyarrow import types

    kind = array.type
    if isinstance(array, pyarrow.ExtensionArray):
        return _extension_values(array)
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if types.is_run_end_encoded(kind):
        return _values(pyarrow.compute.run_end_decode(array))
    if types.is_struct(kind):
        return _structs(array)
    if types.is_map(kind):
        return _maps(array)
    lists = (
        types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view,
    )  # fmt: skip
    if any(check(kind) for check in lists):
        return _lists(array)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _texts(array)
    if types.is_float16(kind) or types.is_float32(kind):  # the digits of the value, not those of its double
        return [None if value is None else float(str(value)) for value in _floats(array)]
    plain = (types.is_boolean, types.is_integer, types.is_float64, types.is_decimal, types.is_null)
    return list(array.to_pylist()) if any(check(kind) for check in plain) else _unreadable(array, str(kind))


def _floats(array: pyarrow.Array) -> list[Any]:
    values = array.to_numpy(zero_copy_only=False)
    return [value if is_valid else None for value, is_valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def _extension_values(array: pyarrow.ExtensionArray) -> list[Any]:
    """Return the values of a type with a name: JSON parsed, others as they are stored, if that has the same meaning."""
    name, stored = array.type.extension_name, _values(array.storage)
    if name == "arrow.json":
        return [text if text is None or isinstance(text, Unreadable) else _parsed(text) for text in stored]
    if name == "arrow.bool8":
        return [None if value is None else bool(value) for value in stored]
    shape = getattr(array.type, "shape", ())
    if name in ("arrow.fixed_shape_tensor", "arrow.opaque") and len(shape) != 1:
        return [None if value is None else Unreadable(str(array.type), str(value)) for value in stored]
    return stored


def _parsed(text: str) -> Any:
    try:
        return json_decoder().decode(text)
    except (ValueError, RecursionError) as error:
        return Unreadable("invalid JSON", f"{error}")


def _structs(array: pyarrow.Array) -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        return _unreadable(array, str(array.type))
    columns = [_values(column) for column in array.flatten()]
    return [
        {name: column[at] for name, column in zip(names, columns, strict=True) if column[at] is not None}
        if is_valid
        else None
        for at, is_valid in enumerate(array.is_valid().to_pylist())
    ]


def _maps(array: pyarrow.Array) -> list[Any]:
    """Return maps as objects. A key that is no text, or that is repeated, has no form in JSON."""
    import pyarrow

    kind = array.type
    entry = pyarrow.struct([("key", kind.key_type), ("value", kind.item_type)])
    entries = _values(array.cast(pyarrow.list_(entry)))
    values: list[Any] = []
    for pairs in entries:
        value = None if pairs is None else {pair["key"]: pair.get("value") for pair in pairs}
        is_object = value is None or (all(isinstance(key, str) for key in value) and len(value) == len(pairs))
        values.append(value if is_object else Unreadable(str(kind), str(pairs)))
    return values


def _lists(array: pyarrow.Array) -> list[Any]:
    import pyarrow.compute

    items, end, values = _values(array.flatten()), 0, list[Any]()
    for length in pyarrow.compute.list_value_length(array).to_pylist():
        start, end = end, end + (length or 0)
        values.append(None if length is None else items[start:end])
    return values


def _texts(array: pyarrow.Array) -> list[Any]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_text(value) for value in array]


def _text(value: pyarrow.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return Unreadable("text that is not UTF-8")


def _unreadable(array: pyarrow.Array, kind: str) -> list[Any]:
    import pyarrow

    try:
        texts = array.cast(pyarrow.string()).to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError):
        texts = [_description(value) if value.is_valid else None for value in array]
    return [text if text is None else Unreadable(kind, text) for text in texts]


def _description(value: pyarrow.Scalar) -> str:
    import pyarrow

    try:
        return str(value.as_py())
    except (ValueError, OverflowError, LookupError, TypeError, pyarrow.ArrowException):
        return ""  # beyond Python's calendar, or an unknown time zone
