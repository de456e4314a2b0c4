"""Builds the program that compares answers in the judge's sandbox, and installs its package there.

`verify` sends `program(pairs)` to the judge. The program imports the package `equality` under the name MODULE, which a
sandbox has (`install`), and its warm interpreter has loaded (WARM_UP). A judge of another version does not have it:
there the program prints NO_PACKAGE, and `verify` sends `program(pairs, with_package=True)`. MODULE contains a hash of
the files, so that another version is never used by mistake.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from rstar2_train.utils.files import cache_folder, write_atomically

_FOLDER = Path(__file__).with_name("equality")
_ORDER = (
    *("__init__", "tokens", "commands", "events", "latex", "exact", "evaluator", "values", "expressions"),
    *("real_sets", "notations", "shapes", "integer_families", "constants", "labels", "compare", "check"),
)
"""The modules of the package; a module imports only earlier ones."""
SOURCES = {name: (_FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in _ORDER}
"""Module -> source text."""
MODULE = f"rstar2_equality_{hashlib.sha256(json.dumps(SOURCES).encode()).hexdigest()[:12]}"
"""Name of the package inside the sandbox."""
WARM_UP = f"import mpmath\nfrom {MODULE}.check import warm_up\nwarm_up()\n"
"""Program for a warm interpreter of a sandbox that has the package: it imports, parses and compares once."""

_WARM_UP_MODULE = "sandbox_warm_up"
"""Name of a module that a judge imports before the first call (WARM_UP_MODULE in judge/sandbox/rootfs.py)."""

NO_PACKAGE = "no package"
"""Output of a program that finds no package in its sandbox."""

_COMPARE = """\
import mpmath
try:
    from {module}.check import main
except ImportError:
    print({no_package!r})
else:
    main({pairs!r})
"""
_LOAD = """\
import base64, json, sys, types, zlib
for name, source in json.loads(zlib.decompress(base64.b85decode({packed!r}))).items():
    full = "{module}" if name == "__init__" else "{module}." + name
    sys.modules[full] = module = types.ModuleType(full)
    module.__package__, module.__path__ = "{module}", []
    exec(compile(source, full, "exec"), module.__dict__)
"""


def program(pairs: Sequence[tuple[str, str]], *, with_package: bool = False) -> str:
    """Return a program that prints the verdict on (answer, gold) pairs: `correct`, `wrong` or `undecided`.

    All texts are literals (`repr`) in the program, never code. `with_package`: the program carries its package (40 KB).
    """
    compare = _COMPARE.format(module=MODULE, no_package=NO_PACKAGE, pairs=list(pairs))
    return _loader() + compare if with_package else compare


@cache
def _loader() -> str:
    packed = base64.b85encode(zlib.compress(json.dumps(SOURCES).encode(), 9))
    return _LOAD.format(module=MODULE, packed=packed)


def sandbox_package() -> Path:
    """Return the package in a folder of the user's cache, for RSTAR2_SANDBOX_PACKAGES of a judge; write it first."""
    packages = cache_folder() / "sandbox" / "checks"
    if not (packages / MODULE / f"{_WARM_UP_MODULE}.py").exists():  # the file that is written last
        install(packages)
    return packages / MODULE


def install(packages: Path) -> None:
    """Write the package into a folder of packages."""
    folder = packages / MODULE
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        write_atomically(folder / f"{name}.py", source)
    write_atomically(folder / f"{_WARM_UP_MODULE}.py", WARM_UP)


if __name__ == "__main__":  # for the build of the judge's image
    print(sandbox_package())
