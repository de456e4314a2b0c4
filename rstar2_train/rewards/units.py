r"""Units at the end of an answer: their names, their products and powers, and amounts of two units (`3 h 20 min`).

`normalize` removes a unit and keeps its canonical name, such as `cm2`, `m/s` or `%`. Two answers with known units must
have the same one. Amounts are not converted, except one in two units. A word that no table has (`apples`) is not a
unit. Pure; standard library only. Each pattern takes linear time on a unit, which `verify.compare` keeps short.
"""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = {
    "nm": "nm nanometer nanometre",
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "g": "g gram",
    "mg": "mg milligram",
    "kg": "kg kilogram",
    "lb": "lb pound",
    "oz": "oz ounce",
    "ton": "ton tonne",
    "ml": "ml milliliter millilitre",
    "l": "l liter litre",
    "gal": "gal gallon",
    "qt": "qt quart",
    "pt": "pint",
    "cup": "cup",
    "acre": "acre",
    "ha": "ha hectare",
    "ms": "millisecond",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year yr",
    "dollar": "dollar usd",
    "cent": "cent",
    "euro": "euro eur",
    "yen": "yen",
    "rupee": "rupee",
    "degree": "degree deg",
    "radian": "radian rad",
    "%": "percent pct percentage",
    "J": "joule",
    "kJ": "kilojoule",
    "cal": "cal calorie",
    "kcal": "kcal kilocalorie",
    "N": "newton",
    "W": "watt",
    "kW": "kilowatt",
    "V": "volt",
    "A": "amp ampere",
    "K": "kelvin",
    "Pa": "pascal",
    "kPa": "kilopascal",
    "atm": "atm atmosphere",
    "Hz": "hz hertz",
    "kHz": "khz kilohertz",
    "mol": "mol mole",
    "ohm": "ohm",
    "T": "tesla",
    "eV": "electronvolt",
    "keV": "kiloelectronvolt",
    "MeV": "megaelectronvolt",
    "GeV": "gigaelectronvolt",
    "kohm": "kohm kiloohm",
    "Mohm": "megaohm",
    "um": "um micrometer micrometre micron",
    "us": "microsecond",
    "ns": "ns nanosecond",
    "F": "farad",
    "H": "henry henrie",
    "C": "coulomb",
    "Wb": "weber",
    "mW": "milliwatt",
    "kWh": "kilowatthour",
    "mT": "millitesla",
    "mF": "millifarad",
    "uF": "microfarad",
    "nF": "nanofarad",
    "pF": "picofarad",
    "uC": "microcoulomb",
    "mH": "millihenry millihenrie",
    "mmol": "mmol millimole",
    "dB": "db decibel",
    "bit": "bit",
    "byte": "byte",
    "kB": "kb kilobyte",
    "MB": "mb megabyte",
    "GB": "gb gigabyte",
    "TB": "tb terabyte",
    "rev": "rev revolution",
    "decade": "decade",
    "century": "century centurie",
    "au": "astronomicalunit",
    "ly": "lightyear",
    "parsec": "parsec",
    "MHz": "mhz megahertz",
    "GHz": "ghz gigahertz",
    "MPa": "megapascal",
    "GPa": "gigapascal",
    "mV": "millivolt",
    "kV": "kilovolt",
    "mA": "milliampere",
    "MJ": "megajoule",
    "MW": "megawatt",
    "kN": "kilonewton",
    "am": "am",
    "pm": "pm",
    "celsius": "celsius",
    "fahrenheit": "fahrenheit",
}
"""Unit -> its names in lower case, without plurals in s."""
_PREFIXES = {"J": "mkMG", "N": "munkM", "W": "munkMG", "V": "munkM", "A": "munkM", "Pa": "hkMG", "T": "mun", "K": "mk"}
_PREFIXES |= {"eV": "mkMGT", "F": "munp", "H": "mun", "C": "munp", "Wb": "m", "Wh": "kMG", "mol": "mun", "s": "mnp"}
SYMBOLS = {prefix + base: prefix + base for base, prefixes in _PREFIXES.items() for prefix in ("", *prefixes)}
SYMBOLS |= {"Mohm": "Mohm", "AU": "au", "dB": "dB", "kB": "kB", "M": "mol/l"}
"""Symbols whose case matters."""
_NAMES = {name: unit for unit, names in UNITS.items() for name in names.split()}
_NAMES |= {f"{name}s": unit for name, unit in _NAMES.items() if len(name) > 1}
_SPEED = {"mph": "mi/h", "kph": "km/h", "kmph": "km/h", "kmh": "km/h", "rpm": "rev/min", "fps": "ft/s"}
_PRODUCTS = frozenset(
    [
        "nm",
        "mg",
        "ml",
        "ms",
        "ha",
        "qt",
        "hz",
        "khz",
        "mhz",
        "ghz",
        "um",
        "us",
        "mol",
        "mols",
        "cal",
        "cals",
        "atm",
        "amp",
        "amps",
        "yr",
        "yrs",
        "usd",
        "eur",
        "ns",
        "db",
        "kb",
        "mb",
        "gb",
        "tb",
        "mmol",
        "mmols",
    ]
)
"""Names that are also products of letters: a unit only inside a font command or after a blank."""
NAME = "|".join(sorted({name for name in (*_NAMES, *_SPEED) if len(name) > 1} - _PRODUCTS, key=len, reverse=True))
"""Pattern of a name that is a unit without a font command and without a blank before it."""
FONT = r"\\(?:text(?:bf|it|rm|normal|sf)?|mbox|math(?:rm|bf|it|sf)|boldsymbol|bm|operatorname)\s*"
"""Pattern of a font command before its brace."""
_MIXED = (
    "year month week day h min s",
    "yd ft in",
    "mi ft",
    "lb oz",
    "km m cm mm",
    "kg g",
    "gal qt pt cup",
    "dollar cent",
)
"""Units of one quantity, from large to small, that an amount may combine."""
_SIZES = {"week": 604800, "day": 86400, "h": 3600, "min": 60, "s": 1} | {"mi": 63360, "yd": 36, "ft": 12, "in": 1}
_SIZES |= {"lb": 16, "oz": 1, "km": 10**6, "m": 1000, "cm": 10, "mm": 1, "kg": 1000, "g": 1}
"""Size of a unit, relative to the smallest one of its quantity."""
_AMOUNT = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*([a-zA-Z]+)\.?(?:\s*,)?(?:\s*and(?![a-zA-Z]))?\s*")
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_FACTOR = re.compile(
    r"(?P<slash>/|\bper\b)|(?P<of>\b(?:sq|square|cu|cubic)\b)\.?|(?P<name>[a-zA-Z%]+)\.?"
    r"(?:\s*\^?\s*(?P<power>-?[1-9])|\s+(?P<word>squared|cubed)\b)?|(?P<other>\S)"
)
_MICRO = re.compile(r"(?:\\mu(?![a-zA-Z])|[\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}])\s*")
_NO_UNIT = re.compile(
    r",|\b(?:old|ago|later|earlier|each|apart|away|long|high|tall|wide|deep|in total|total"
    r"|(?:due )?(?:north|south|east|west)"
    r"|(?:up|down|for|back)wards?|to the (?:left|right)|absorbed|released|of\s.*)\b"
)
"""Words next to a unit: `years old`, `liters of water`, `km/h north`."""
_SAME = ({"C", "celsius"}, {"F", "fahrenheit"}, {"degree", "celsius"}, {"degree", "fahrenheit"}, {"Hz", "/s"})
"""Two canonical names of one unit. A temperature is also written with `C`, or with degrees alone."""
_POWERS = {"s": 2, "c": 3}


def canonical_unit(written: str) -> str:
    r"""Return the canonical name of a written unit: `cm2` for `\text{square cm}`, `m/s` for `\text{m s}^{-1}`.

    Return an empty text if a part of it is no known unit.
    """
    plain = re.sub(r"/\s*\(([^()]*)\)([\s}]*)$", r"/\1\2", re.sub(r"(?i)\b([ap])\.\s*m\b", r"\1m", written))
    plain = re.sub(FONT, " ", re.sub(FONT + r"\{([^{}]*)\}", r" \1 ", plain))
    plain = re.sub(r"(?i)\b(kilowatt|light|astronomical)[- ](?=hour|year|unit)", r"\1", plain)
    plain = _NO_UNIT.sub(" ", _MICRO.sub("u", plain))
    plain = re.sub(r"(?i)\bdegrees?\s+(?=celsius|fahrenheit|[CF]\b)", "", plain)
    plain = re.sub(r"\{\s*\{([^{}]*)\}\s*\}", r"{\1}", plain.replace("^\\circ", ""))
    plain = _FRACTION.sub(r"\1/\2", plain)
    plain = re.sub(r"\\cdot(?![a-zA-Z])|\\[,;: ]|[*~$]", " ", plain)
    plain = re.sub(r"[{}]", "", re.sub(r"\\frac\s*(\S+)\s+(\S+)", r"\1/\2", plain)).strip()
    powers: dict[str, int] = {}
    sign, shape = 1, 1
    for factor in _FACTOR.finditer(plain):
        if factor["other"]:
            return ""
        if factor["slash"]:
            sign = -1
            continue
        if factor["of"]:
            shape = _POWERS[factor["of"][0]]
            continue
        unit = _unit_of_name(factor["name"])
        if not unit:
            return ""
        power = int(factor["power"] or _POWERS.get((factor["word"] or " ")[0], 1)) * shape
        shape = 1
        top, _, bottom = unit.partition("/")
        powers[top] = powers.get(top, 0) + sign * power
        if bottom:
            powers[bottom] = powers.get(bottom, 0) - sign * power
    return _canonical(powers)


def in_one_unit(value: str, units: str, unit: str) -> str | None:
    r"""Return an amount in one of its units: `\frac{3}{2}` for `(1,30)` in `h+min` and `h`; None for other units."""
    names = units.split("+")
    if len(names) == 1 or unit not in _SIZES or not {unit, *names} <= {*_SIZES}:
        return None
    if not any({unit, *names} <= set(quantity.split()) for quantity in _MIXED):
        return None
    amounts = zip(map(Fraction, value.strip("()").split(",")), names, strict=True)
    total = sum((number * _SIZES[name] for number, name in amounts), Fraction(0)) / _SIZES[unit]
    return rf"\frac{{{total.numerator}}}{{{total.denominator}}}" if total.denominator > 1 else str(total)


def is_same_unit(first: str, second: str) -> bool:
    r"""Return whether two canonical units are one unit: `/s` and `Hz`, `98.6 F` and `98.6^\circ F`."""
    return first == second or {first, second} in _SAME


def _unit_of_name(name: str) -> str:
    return SYMBOLS.get(name) or _NAMES.get(name.lower(), "") or _SPEED.get(name.lower(), "")


def _canonical(powers: dict[str, int]) -> str:
    """Return the units with positive powers, a slash, and those with negative ones."""
    sides = [
        "*".join(
            f"{unit}{abs(power) if abs(power) > 1 else ''}"
            for unit, power in sorted(powers.items())
            if power * sign > 0
        )
        for sign in (1, -1)
    ]
    return sides[0] + (f"/{sides[1]}" if sides[1] else "")


def mixed_amount(value: str) -> tuple[str, str] | None:
    r"""Return the value and the unit of an amount in two or three units, None for other texts.

    `3\text{ hours and }20\text{ minutes}` is the tuple `(3,20)` in `h+min`. Dollars and cents are a decimal in dollars.
    """
    plain = re.sub(FONT + r"(?=\{)", " ", value).replace("{", " ").replace("}", " ").strip()
    parts = [(match[1].replace(",", ""), _unit_of_name(match[2])) for match in _AMOUNT.finditer(plain)]
    if not 2 <= len(parts) <= 4 or _AMOUNT.sub("", plain).strip():
        return None
    numbers, units = zip(*parts, strict=True)
    if units[0] == "h" and units[1] == "m":
        units = ("h", "min", *units[2:])
    scale = next((names.split() for names in _MIXED if set(units) <= set(names.split())), [])
    if not scale or [scale.index(unit) for unit in units] != sorted({scale.index(unit) for unit in units}):
        return None
    if units == ("dollar", "cent") and numbers[1].isdigit() and int(numbers[1]) < 100:
        return f"{numbers[0]}.{int(numbers[1]):02d}", "dollar"
    return f"({','.join(numbers)})", "+".join(units)
