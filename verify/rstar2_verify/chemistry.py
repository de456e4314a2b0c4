r"""Compares chemical formulas, reactions and electron configurations as text in one notation.

`H2O`, `\text{H}_2\text{O}`, `\ce{H2O}` and `H₂O` are the same. Standard library only.
"""

from __future__ import annotations

import re
import unicodedata

from .lexicon import word_set

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
_HYBRID = re.compile(r"sp(?:\^?[23])?(?:d\^?[23]?)?")
_SHELL = re.compile(r"(\d[spdf])\^(\d{1,2}?)(?=\d[spdf]|$)")


_ELEMENT_NAMES: dict[str, str] = dict(
    pair.split("=")
    for pair in word_set(
        "hydrogen=H helium=He lithium=Li beryllium=Be boron=B carbon=C nitrogen=N oxygen=O fluorine=F neon=Ne",
        "sodium=Na magnesium=Mg aluminum=Al aluminium=Al silicon=Si phosphorus=P sulfur=S chlorine=Cl argon=Ar",
        "potassium=K calcium=Ca iron=Fe cobalt=Co nickel=Ni copper=Cu zinc=Zn strontium=Sr iodine=I xenon=Xe",
        "cesium=Cs barium=Ba gold=Au mercury=Hg lead=Pb bismuth=Bi polonium=Po radon=Rn radium=Ra thorium=Th",
        "uranium=U neptunium=Np plutonium=Pu",
    )
)
_ISOTOPE = re.compile(
    r"(?:_\d{1,3})?\^(?P<mass>\d{1,3})(?:_\d{1,3})?(?P<symbol>[A-Z][a-z]?)|(?P<name>[A-Za-z]+)-(?P<number>\d{1,3})"
)
_ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8}
_CHARGE = re.compile(r"(?P<sign>[-+])?(?P<size>\d|[IV]+)(?P<last>[-+])?")


def _isotope(text: str) -> tuple[str, int] | None:
    """Return the symbol and the mass of `^{238}U`, `U-238` or `uranium-238`; None for other texts."""
    raised = re.sub("[⁰¹²³⁴-⁹]+", lambda run: "^" + run[0].translate(_SUPERSCRIPTS), text) if len(text) < 60 else ""
    plain = re.sub(r"[{}\s$]|\\(?:text|mathrm|ce)", "", raised)
    match = _ISOTOPE.fullmatch(plain)
    if match is None:
        return None
    symbol = match["symbol"] or _ELEMENT_NAMES.get(match["name"].lower(), match["name"])
    return (symbol, int(match["mass"] or match["number"])) if symbol in _ELEMENT_NAMES.values() else None


def _charge(text: str) -> int | None:
    """Return the charge or the oxidation state `+2`, `2+` or `+II`; None for other texts."""
    match = _CHARGE.fullmatch(re.sub(r"[{}\s$^]|\\(?:text|mathrm)", "", text)) if len(text) < 30 else None
    if match is None or (match["sign"] and match["last"]):
        return None
    size = int(match["size"]) if match["size"].isdigit() else _ROMAN.get(match["size"], 0)
    return -size if "-" in (match["sign"], match["last"]) else size


def same_formulas(known: str, answer: str) -> bool | None:
    """Return whether both are the same chemical formula, reaction or electron configuration; None for other texts."""
    isotopes = _isotope(known), _isotope(answer)
    if all(isotopes):
        return isotopes[0] == isotopes[1]
    if re.fullmatch(r"[-+]\d|\d[-+]", known.strip("${} ")) and _charge(answer) is not None:
        return _charge(known) == _charge(answer)
    first, second = _plain(known), _plain(answer)
    if not first or len(first) > 200 or len(second) > 200:
        return None
    shells = _SHELL.findall(first)
    if shells and "".join(f"{shell}^{count}" for shell, count in shells) == first:
        return first.replace("^", "") == second.replace("^", "")
    if _HYBRID.fullmatch(first):
        return first.replace("^", "") == re.sub(r"-?hybridi[sz](?:ed|ation)$", "", second).replace("^", "")
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
