"""Loads the plug-ins of benchmarks by name, so that no module of the core imports one."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

PACKAGE = "rstar2_train.benchmarks"


@cache
def benchmark_plugins(part: str) -> tuple[Any, ...]:
    """Return the `PLUGIN` of the module `part` of each benchmark that has it, in the order of `BENCHMARKS`."""
    modules = [f"{PACKAGE}.{name}.{part}" for name in import_module(PACKAGE).BENCHMARKS]
    return tuple(import_module(module).PLUGIN for module in modules if find_spec(module) is not None)
