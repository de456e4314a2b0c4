"""Joins a program that an answer splits over several blocks: helpers, a main part and its call. Pure.

A block is alone unless it cannot be the program: it uses a name that only another block defines, or it prints nothing
and a later block uses its names.
"""

from __future__ import annotations

import builtins
import symtable
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_PARTS = 64
"""Blocks of an answer above which each is read alone, so that the time is linear in the text."""
_KNOWN = frozenset((*dir(builtins), "__name__", "__file__", "__annotations__"))

_PRINTS = ("print", "exec", "eval")


class Part(NamedTuple):
    """A block of an answer."""

    code: str
    defined: frozenset[str] = frozenset()
    """Names that it defines at the top level."""
    missing: frozenset[str] = frozenset()
    """Names that it uses and does not define."""
    has_functions: bool = False
    is_silent: bool = False
    """Whether it certainly prints nothing."""


def read_part(code: str) -> Part:
    """Return the names of a block; a block that is no Python has none."""
    try:
        top = symtable.symtable(code, "<block>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Part(code)
    symbols = top.get_symbols()
    defined = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    functions = {symbol.get_name() for symbol in symbols if symbol.is_namespace()}
    called = {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
    used = {
        symbol.get_name()
        for table in _tables(top)
        for symbol in table.get_symbols()
        if symbol.is_referenced() and (table is top or symbol.is_global())
    }
    missing = set() if "import *" in code else used - defined - _KNOWN
    is_silent = called.isdisjoint({*_PRINTS, *functions, *missing}) and "stdout" not in code
    return Part(code, frozenset(defined), frozenset(missing), bool(functions), is_silent)


def joined_program(parts: Sequence[Part], order: Sequence[int]) -> str:
    """Return the program of the first block in `order` that may print something with its other parts.

    `order`: positions in `parts`, the most likely program first.
    """
    if len(parts) > MAX_PARTS:
        return parts[order[0]].code
    for main in order:
        members = [parts[at] for at in _positions(parts, main)]
        if any(part.has_functions or not part.is_silent for part in members):
            return "\n".join(part.code for part in members)
    return parts[order[0]].code


def _positions(parts: Sequence[Part], main: int) -> list[int]:
    """Return the positions of a block and of its other parts, in the order of the program."""
    before = _definitions(parts, main)
    members = [*before, main]
    if all(parts[at].is_silent for at in members):
        defined = frozenset().union(*(parts[at].defined for at in members))
        members += [at for at in range(main + 1, len(parts)) if at not in members and parts[at].missing & defined]
    return members


def _definitions(parts: Sequence[Part], main: int) -> list[int]:
    """Return the positions of the blocks that define what block `main` misses: the last one before it, or the next."""
    positions: set[int] = set()
    pending = [main]
    while pending:
        user = pending.pop()
        for name in parts[user].missing:
            others = [at for at, part in enumerate(parts) if name in part.defined and at != main]
            at = next((at for at in reversed(others) if at < main), others[0] if others else None)
            if at is not None and at not in positions:
                positions.add(at)
                pending.append(at)
    return sorted(positions)


def _tables(top: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield top
    for child in top.get_children():
        yield from _tables(child)
