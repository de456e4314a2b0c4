r"""Compares chemical formulas, reactions and electron configurations as text in one notation.

`H2O`, `\text{H}_2\text{O}`, `\ce{H2O}` and `H₂O` are the same. Standard library only.
"""

from __future__ import annotations

import re
import unicodedata

from .lexicon import MODIFIERS, word_set

_ELEMENTS = (
    "H|He|Li|Be|B|C|N|O|F|Ne|Na|Mg|Al|Si|P|S|Cl|Ar|K|Ca|Sc|Ti|V|Cr|Mn|Fe|Co|Ni|Cu|Zn|Ga|Ge|As|Se|Br|Kr|Rb|Sr|Y|Zr|Nb|Mo"
    "|Ru|Rh|Pd|Ag|Cd|In|Sn|Sb|Te|I|Xe|Cs|Ba|La|Ce|W|Pt|Au|Hg|Tl|Pb|Bi|U|Th|Pu|Ra|Rn"
)
_PART = rf"(?:(?:{_ELEMENTS})\d*|\((?:(?:{_ELEMENTS})\d*)+\)\d*)"
_SPECIES = re.compile(rf"\d*(?P<body>{_PART}+(?:·\d*{_PART}+)?)(?:\^?\d*[+-])?(?:\((?:s|l|g|aq)\))?|\d*e\^?-")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_ARROWS = re.compile(
    r"\\xrightarrow\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}|\\(?:long)?rightarrow(?![a-zA-Z])|\\to(?![a-zA-Z])|->|→|⟶|<=>|⇌|\\rightleftharpoons"
)
_DOTS = re.compile(r"\s*(?:\\cdot(?![a-zA-Z])|[·⋅•*]|\.(?=\d*[A-Z]))\s*")
"""The mark of a hydrate."""
_FONTS = re.compile(r"\\(?:text|mathrm|ce|mbox|rm)(?![a-zA-Z])\s*|\\[,;:! ]|[\s${}_]")
_SYMBOL = re.compile(r"(?<![A-Za-z])[A-Z][a-z](?![a-z])|(?<=[A-Z])[A-Z][a-z](?![a-z])")
_PLUS = re.compile(r"(?<![\^\d])\+(?!$)|(?<=\d)\+(?=\d*[A-Ze])")
_CORES = {"[He]": "1s2", "[Ne]": "1s22s22p6", "[Ar]": "1s22s22p63s23p6", "[Kr]": "1s22s22p63s23p63d104s24p6"}
_CHARGED = re.compile(r"\^(?=[+-](?!\d))|(?<!\d)\^(?=\d+[+-])|\^(?P<sign>[+-])(?P<size>\d+)")
"""The mark of a charge: `Al3+` is `Al^{3+}` and `Al^{+3}`, but `SO42-` may be two ions."""
_WRITTEN = re.compile(r"(?<!\^\d)(?<=[A-Za-z\d)\]])([+-])(?=\s+(?:\+|\\|->|→|⟶|<=>|⇌))")
"""The sign of a charge before a sign between species: `Ag+ + Cl- -> AgCl`."""
_STATE = re.compile(r"\((?:s|l|g|aq)\)")
_NAME = re.compile(r"(?<![A-Za-z\\])(?:[A-Z]?[a-z]{3,}(?:\([IV]+\))?|(?:[Tt]he|[Aa]n?|is|of)(?![\d_^(]))(?![A-Za-z}])")
"""A word next to a formula."""
_HYBRID = re.compile(r"sp(?:\^?[23])?(?:d\^?[23]?)?")
_SHELL = re.compile(r"(\d[spdf])\^?(\d{1,2}?)(?=\d[spdf]|$)")
_SHELLS = re.compile(rf"(\[[A-Z][a-z]\])?((?:{_SHELL.pattern})+)")


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
    shells = [_SHELLS.fullmatch(side) for side in (first, second)]
    if shells[0]:
        sides = [sorted(_SHELL.findall(_CORES.get(side[1], side[1] or "") + side[2])) for side in shells if side]
        return len(sides) == 2 and sides[0] == sides[1]
    if _HYBRID.fullmatch(first):
        return first.replace("^", "") == re.sub(r"-?hybridi[sz](?:ed|ation)$", "", second).replace("^", "")
    if first != second and first.lower() == second.lower() and all(map(_SPECIES.fullmatch, (first, second))):
        return False  # `CO` and `Co`
    if not _is_formula(first):
        return None
    states = all(_STATE.search(side) for side in (first, second))
    if _species(first, states=states) == _species(second, states=states):
        return True
    if not _is_formula(second):
        named = _NAME.sub(lambda word: word[0] if word[0].lower() in MODIFIERS else "", answer)
        named = _plain(named).strip(",()")
        symbols = len(first) > 3 or _SYMBOL.search(first)
        return True if symbols and _species(first, states=True) == _species(named, states=True) else None
    return False if _SYMBOL.search(first) and _SYMBOL.search(second) else None


def _species(plain: str, *, states: bool) -> list[list[str]]:
    """Return the species of each side of a reaction in alphabetical order, with their coefficients."""
    sides = (plain if states else _STATE.sub("", plain)).split(">")
    return [sorted(_CHARGED.sub(r"\g<size>\g<sign>", part) for part in _PLUS.split(side)) for side in sides]


def _plain(text: str) -> str:
    text = _DOTS.sub("·", _ARROWS.sub(">", _WRITTEN.sub(r"^\1", text)))
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
    if not all(_SPECIES.fullmatch(part) for side in plain.split(">") for part in _PLUS.split(side)):
        return False
    return ">" in plain or len(re.findall(r"[A-Z]", plain)) > 1 or bool(re.search(r"\d|[+-]$", plain))
