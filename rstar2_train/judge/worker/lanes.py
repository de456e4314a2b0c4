"""Chooses the lane of a snippet from its imports. A wrong choice costs time (the import), never correctness.

Clients wrap the code of a model: the template of rStar2-Agent decodes it from base64 and calls `exec`. So the texts in
a program that runs text count as programs too.

The code is hostile, and the worker must not stall: a scan reads at most MAX_SCANNED characters of a program with all
texts in it, decoded and unpacked, each of them once and in linear time. No program is parsed.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import zlib
from collections.abc import Collection

LANE_MODULES = {
    "sympy": ("sympy", "math_verify", "latex2sympy2_extended", "fused_compute_score"),
    "numpy": ("numpy",),
}
"""Lane -> top-level modules that its zygote has loaded, or that import those. Earlier lanes have priority.

The lane `std` has mpmath and the check of answers, which are small."""
LIGHT_MODULES = {
    "__future__",
    "math",
    "sys",
    "os",
    "time",
    "itertools",
    "builtins",
    "io",
    "errno",
    "atexit",
    "gc",
    "cmath",
}
"""Modules that `bare` has loaded or loads in no time; any other import is faster in `std`."""
MAX_SCANNED = 64 * 1024
"""Characters that are read of a program and of all texts in it."""
MAX_DEPTH = 3
"""Depth of programs in texts of programs."""

_TOKEN = re.compile(
    r"""
    \#[^\n]*+
    | (?P<open>'''|\"""|'|")
    | \bfrom[ \t]*+\.[\w. \t]*+
    | \bfrom[ \t]++(?P<module>[^\W\d]\w*+)[\w.]*+[ \t]++import\b
    | \bimport[ \t]++(?P<modules>\w[\w., \t]*+)
    | \b(?:__import__|import_module)[ \t]*+\([ \t]*+['"](?P<named>\w++)
    | \b(?P<runs>exec|eval|compile|execute_code|run_cell|runsource|runcode)[ \t]*+\(
    """,
    re.VERBOSE,
)
"""Comments, strings, imports and calls that run a text. No alternative can fail after it has read a long text."""
_STRING_END = {
    quote: re.compile(rf"(?:[^\\{quote[0]}{newline}]|\\.{inner})*+(?:{quote})?+", re.DOTALL)
    for quote, newline, inner in (
        ("'", r"\n", ""),
        ('"', r"\n", ""),
        ("'''", "", "|'(?!'')"),
        ('"""', "", '|"(?!"")'),
    )
}
"""Opening quote -> the rest of the string, up to its end or to that of the line or program."""
_BASE64 = re.compile(r"[A-Za-z0-9+/_\-\s]{16,}+={0,2}+\s*+")
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2}){8,}+")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|([\s\S]))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}


class _Scan:
    """The modules that a program imports, and the characters that may still be read."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.left = MAX_SCANNED

    def read(self, code: str, depth: int = 0) -> None:
        """Add the top-level names of the modules that a program imports, also in the texts that it runs."""
        code = code[: self.left]
        self.left -= len(code)
        texts: list[str] = []
        runs_text, position = False, 0
        while match := _TOKEN.search(code, position):
            position = match.end()
            kind = match.lastgroup
            if kind == "open":
                end = _STRING_END[match["open"]].match(code, position)
                assert end is not None
                texts.append(end[0].removesuffix(match["open"]))
                position = max(end.end(), position)
            elif kind == "modules":
                self.modules.update(part.strip().partition(".")[0].split(" ")[0] for part in match[kind].split(","))
            elif kind == "runs":
                runs_text = True
            elif kind is not None:
                self.modules.add(match[kind])
        if runs_text and depth < MAX_DEPTH:
            for text in sorted(texts, key=len, reverse=True):
                if len(text) > len("import") and self.left > 0:
                    self._read_text(text, depth + 1)

    def _read_text(self, text: str, depth: int) -> None:
        """Read a text as a program, as it is and with the decodings of its digits."""
        data = _decoded(text)
        if data is not None:
            unpacked = self._unpacked(data)
            if b"import" in unpacked:
                self.read(unpacked.decode(errors="ignore"), depth)
        elif "import" in text:
            self.read(_ESCAPE.sub(lambda escape: _unescaped(escape[1], escape[2]), text), depth)
        else:
            self.left -= len(text)

    def _unpacked(self, data: bytes) -> bytes:
        """Return the data, unpacked if they are in zlib's format. Their length counts as read."""
        self.left -= len(data)
        if data[:1] == b"x" and self.left > 0:  # the first byte of the format
            with contextlib.suppress(zlib.error):
                data = zlib.decompressobj().decompress(data, self.left)
                self.left -= len(data) // 8  # unpacking is faster than reading
        return data


def _decoded(text: str) -> bytes | None:
    """Return the bytes that a text encodes in hexadecimal digits or base64; None if it is no such text."""
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    if _BASE64.fullmatch(text):
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(text.translate({ord("-"): "+", ord("_"): "/"}))
    return None


def _unescaped(digits: str | None, character: str | None) -> str:
    """Return the character of an escape sequence in a string."""
    return chr(int(digits, 16)) if digits else _ESCAPES.get(character or "", character or "")


def choose_lane(code: str, lanes: Collection[str], *, packages: Collection[str] = ()) -> str:
    """Return the lane for a snippet; `bare` if it imports nothing, `std` if it is too long to be read.

    `packages`: top-level modules of the lane `packages`.
    """
    default = "std" if "std" in lanes else "bare"
    if len(code) > MAX_SCANNED:
        return default if "import" in code else "bare"
    scan = _Scan()
    scan.read(code)
    for lane, modules in {"packages": packages, **LANE_MODULES}.items():
        if lane in lanes and scan.modules.intersection(modules):
            return lane
    return default if scan.modules - LIGHT_MODULES else "bare"
