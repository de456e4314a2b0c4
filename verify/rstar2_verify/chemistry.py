r"""Compares chemical formulas, reactions and electron configurations as text in one notation.

`H2O`, `\text{H}_2\text{O}`, `\ce{H2O}` and `H₂O` are the same. Standard library only.
"""

from __future__ import annotations

import re
import unicodedata

_ELEMENTS = (
    "H|He|Li|Be|B|C|N|O|F|Ne|Na|Mg|Al|Si|P|S|Cl|Ar|K|Ca|Sc|Ti|V|Cr|Mn|Fe|Co|Ni|Cu|Zn|Ga|Ge|As|Se|Br|Kr|Rb|Sr|Y|Zr|Nb|Mo"
    "|Ru|Rh|Pd|Ag|Cd|In|Sn|Sb|Te|I|Xe|Cs|Ba|La|Ce|W|Pt|Au|Hg|Tl|Pb|Bi|U|Th|Pu|Ra|Rn"
)
_PART = rf"(?:(?:{_ELEMENTS})\d*|\((?:(?:{_ELEMENTS})\d*)+\)\d*)"
_SPECIES = re.compile(rf"\d*(?P<body>{_PART}+)(?:\^?\d*[+-])?(?:\((?:s|l|g|aq)\))?")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_ARROWS = re.compile(
    r"\\xrightarrow\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}|\\(?:long)?rightarrow(?![a-zA-Z])|\\to(?![a-zA-Z])|->|→|⟶|\\rightleftharpoons"
)
_FONTS = re.compile(r"\\(?:text|mathrm|ce|mbox|rm)(?![a-zA-Z])\s*|\\[,;:! ]|[\s${}_]")
_SYMBOL = re.compile(r"(?<![A-Za-z])[A-Z][a-z](?![a-z])|(?<=[A-Z])[A-Z][a-z](?![a-z])")
_SHELL = re.compile(r"(\d[spdf])\^(\d{1,2}?)(?=\d[spdf]|$)")


def same_formulas(known: str, answer: str) -> bool | None:
    """Return whether both are the same chemical formula, reaction or electron configuration; None for other texts."""
    first, second = _plain(known), _plain(answer)
    if not first or len(first) > 200 or len(second) > 200:
        return None
    shells = _SHELL.findall(first)
    if shells and "".join(f"{shell}^{count}" for shell, count in shells) == first:
        return first == second
    if not _is_formula(first):
        return None
    if re.sub(r"\^(?=[+-])", "", first) == re.sub(r"\^(?=[+-])", "", second):
        return True
    return False if _is_formula(second) and _SYMBOL.search(first) and _SYMBOL.search(second) else None


def _plain(text: str) -> str:
    text = _ARROWS.sub(">", text)
    result = ""
    for character in text:
        if character in "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻":
            result += (
                "" if result.endswith("^") or (result and result[-1] in "0123456789+-" and "^" in result[-3:]) else "^"
            )
            result += character.translate(_SUPERSCRIPTS)
        else:
            result += unicodedata.normalize("NFKC", character)
    return _FONTS.sub("", result)


def _is_formula(plain: str) -> bool:
    parts = [part for side in plain.split(">") for part in re.split(r"(?<![\^\d])\+(?!$)|(?<=\d)\+(?=\d*[A-Z])", side)]
    if not all(_SPECIES.fullmatch(part) for part in parts):
        return False
    return ">" in plain or len(re.findall(r"[A-Z]", plain)) > 1 or bool(re.search(r"\d|[+-]$", plain))
