"""Builds the program that compares answers in the judge's sandbox, and installs its package there.

`verify` sends `program(pairs)` to the judge. The program imports the package `equality` under the name MODULE. A
sandbox that has it (`install`) and a warm interpreter that ran WARM_UP start to compare immediately. Any other sandbox
loads the package from the program itself. MODULE contains a hash of the files, so that a judge of another version is
never used by mistake. Standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

_FOLDER = Path(__file__).with_name("equality")
_ORDER = (
    *("__init__", "tokens", "commands", "latex", "exact", "evaluator", "values", "expressions"),
    *("real_sets", "notations", "shapes", "integer_families", "constants", "labels", "compare", "check"),
)
"""The modules of the package; a module imports only earlier ones."""
SOURCES = {name: (_FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in _ORDER}
"""Module -> source text."""
MODULE = f"rstar2_equality_{hashlib.sha256(json.dumps(SOURCES).encode()).hexdigest()[:12]}"
"""Name of the package inside the sandbox."""
WARM_UP = f"import mpmath\nfrom {MODULE}.check import warm_up\nwarm_up()\n"
"""Program for a warm interpreter of a sandbox that has the package: it imports, parses and compares once."""

_LOADER = """\
import mpmath, sys
try:
    from {module}.check import main
except ImportError:
    import base64, json, types, zlib
    for name, source in json.loads(zlib.decompress(base64.b85decode({packed!r}))).items():
        full = "{module}" if name == "__init__" else "{module}." + name
        sys.modules[full] = module = types.ModuleType(full)
        module.__package__, module.__path__ = "{module}", []
        exec(compile(source, full, "exec"), module.__dict__)
    from {module}.check import main
"""
_PROGRAM = _LOADER.format(module=MODULE, packed=base64.b85encode(zlib.compress(json.dumps(SOURCES).encode(), 9)))


def program(pairs: Sequence[tuple[str, str]]) -> str:
    """Return a program that prints the verdict on (answer, gold) pairs: `correct`, `wrong` or `undecided`.

    All texts are literals (`repr`) in the program, never code.
    """
    return f"{_PROGRAM}\n\nmain({list(pairs)!r})\n"


def install(packages: Path) -> None:
    """Write the package into a folder of installed packages (site-packages) of a sandbox."""
    folder = packages / MODULE
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
