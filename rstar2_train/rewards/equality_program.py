"""Builds the program that compares answers in the judge's sandbox, and installs its package there.

`verify` sends `program(answer, gold)` to the judge. The program imports the package `rstar2_verify` under the name
MODULE, which a sandbox has (`install`), and its warm interpreter has loaded (WARM_UP). A judge of another version does
not have it: there the program prints NO_PACKAGE, and `verify` sends the program with the package. MODULE contains a
hash of the files, so that another version is never used by mistake.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import zlib
from functools import cache
from pathlib import Path

from rstar2_train.utils.files import cache_folder, write_atomically

_IMPORT = re.compile(r"^\s*from \.(\w+) import", re.MULTILINE)
_OUTSIDE = frozenset(["cli", "math_verify", "measures", "known"])
"""Modules of the package that a sandbox does not need."""


def _sources() -> dict[str, str]:
    """Return module -> source text; a module imports only earlier ones."""
    spec = importlib.util.find_spec("rstar2_verify")
    assert spec is not None and spec.origin is not None
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(spec.origin).parent.glob("*.py"))}
    texts = {name: text for name, text in texts.items() if name not in _OUTSIDE} | {"__init__": ""}
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        for needed in _IMPORT.findall(texts[name]):
            if needed not in ordered:
                add(needed)
        ordered[name] = texts[name]

    for name in ("__init__", *texts):
        if name not in ordered:
            add(name)
    return ordered


SOURCES = _sources()
"""Module -> source text."""
MODULE = f"rstar2_verify_{hashlib.sha256(json.dumps(SOURCES).encode()).hexdigest()[:12]}"
"""Name of the package inside the sandbox."""
WARM_UP = f"import mpmath\nfrom {MODULE}.limited import warm_up\nwarm_up()\n"
"""Program for a warm interpreter of a sandbox that has the package: it imports, parses and compares once."""

_WARM_UP_MODULE = "sandbox_warm_up"
"""Name of a module that a judge imports before the first call (WARM_UP_MODULE in judge/sandbox/rootfs.py)."""

NO_PACKAGE = "no package"
"""Output of a program that finds no package in its sandbox."""

_COMPARE = """\
try:
    from {module}.limited import main
except ImportError:
    print({no_package!r})
else:
    main({gold!r}, {answer!r})
"""
_LOAD = """\
import base64, json, sys, types, zlib
packed = {packed!r} if "{module}" not in sys.modules else ""
for name, source in json.loads(zlib.decompress(base64.b85decode(packed)) if packed else "{{}}").items():
    full = "{module}" if name == "__init__" else "{module}." + name
    sys.modules[full] = module = types.ModuleType(full)
    module.__package__, module.__path__ = "{module}", []
    exec(compile(source, full, "exec"), module.__dict__)
"""


def program(answer: str, gold: str, *, with_package: bool = False) -> str:
    """Return a program that prints the verdict on an answer: `correct`, `wrong` or `undecided`.

    Both texts are literals (`repr`) in the program, never code. `with_package`: the program carries its package.
    """
    compare = _COMPARE.format(module=MODULE, no_package=NO_PACKAGE, gold=gold, answer=answer)
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
