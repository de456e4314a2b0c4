r"""Units: SI with every prefix, other common units, and their products and powers.

A unit is a sorted tuple of (symbol, power). `scale` converts it into SI, so that amounts of two units are compared
exactly. A word that no table has is no unit. Standard library only.
"""

from __future__ import annotations

import functools
from fractions import Fraction

Unit = tuple[tuple[str, int], ...]

_PREFIXES = {
    "y": -24, "z": -21, "a": -18, "f": -15, "p": -12, "n": -9, "u": -6, "m": -3, "c": -2, "d": -1, "h": 2, "k": 3,
    "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
PREFIX_NAMES = {
    "atto": "a", "femto": "f", "pico": "p", "nano": "n", "micro": "u", "milli": "m", "centi": "c", "deci": "d",
    "hecto": "h", "kilo": "k", "mega": "M", "giga": "G", "tera": "T",
}  # fmt: skip
_BASES: dict[str, tuple[str, Fraction | float, str]] = {
    # symbol: (dimension, size in SI, names in words)
    "m": ("m", 1, "meter metre"), "g": ("kg", Fraction(1, 1000), "gram gramme"), "s": ("s", 1, "second sec"),
    "A": ("A", 1, "ampere amp"), "K": ("K", 1, "kelvin"), "mol": ("mol", 1, "mole"), "cd": ("cd", 1, "candela"),
    "N": ("kg m s-2", 1, "newton"), "J": ("kg m2 s-2", 1, "joule"), "W": ("kg m2 s-3", 1, "watt"),
    "Pa": ("kg m-1 s-2", 1, "pascal"), "Hz": ("s-1", 1, "hertz"), "C": ("A s", 1, "coulomb"),
    "V": ("kg m2 s-3 A-1", 1, "volt"), "ohm": ("kg m2 s-3 A-2", 1, "ohm"), "F": ("A2 s4 kg-1 m-2", 1, "farad"),
    "H": ("kg m2 s-2 A-2", 1, "henry henrie"), "T": ("kg s-2 A-1", 1, "tesla"), "Wb": ("kg m2 s-2 A-1", 1, "weber"),
    "L": ("m3", Fraction(1, 1000), "liter litre"), "eV": ("kg m2 s-2", Fraction(1602176634, 10**28), "electronvolt"),
    "cal": ("kg m2 s-2", Fraction(4184, 1000), "calorie"), "Wh": ("kg m2 s-2", 3600, "watthour"),
    "Ah": ("A s", 3600, "amperehour"), "bar": ("kg m-1 s-2", 100000, "bar"), "pc": ("m", 3.0856775814913673e16, "parsec"),
    "Da": ("kg", 1.66053906892e-27, "dalton"), "B": ("bit", 8, "byte"), "bit": ("bit", 1, "bit"),
    "dyn": ("kg m s-2", Fraction(1, 10**5), "dyne"), "erg": ("kg m2 s-2", Fraction(1, 10**7), "erg"),
    "yr": ("s", 31557600, "year"), "Bq": ("s-1 decay", 1, "becquerel"), "Sv": ("m2 s-2 dose", 1, "sievert"),
    "Gy": ("m2 s-2", 1, "gray"), "S": ("A2 s3 kg-1 m-2", 1, "siemens"), "lm": ("cd", 1, "lumen"), "lx": ("cd m-2", 1, "lux"),
    "t": ("kg", 1000, "tonne ton"), "M": ("mol m-3", 1000, "molar"), "dB": ("dB", 1, "decibel"), "rad": ("rad", 1, "radian"),
    "Torr": ("kg m-1 s-2", Fraction(101325, 760), "torr"),
}  # fmt: skip
_OTHERS: dict[str, tuple[str, Fraction | float, str]] = {
    "min": ("s", 60, "minute min"), "h": ("s", 3600, "hour hr"), "day": ("s", 86400, "day"),
    "week": ("s", 604800, "week"), "month": ("month", 1, "month"), "decade": ("decade", 1, "decade"),
    "century": ("century", 1, "century centurie"), "in": ("m", Fraction(254, 10000), "inch inche"),
    "ft": ("m", Fraction(3048, 10000), "foot feet ft"), "yd": ("m", Fraction(9144, 10000), "yard yd"),
    "mi": ("m", Fraction(1609344, 1000), "mile mi"), "lb": ("kg", Fraction(45359237, 10**8), "lb"), "pound": ("kg", Fraction(45359237, 10**8), "pound"),
    "oz": ("kg", Fraction(45359237, 16 * 10**8), "ounce oz"), "gal": ("m3", Fraction(3785411784, 10**12), "gallon gal"),
    "qt": ("m3", Fraction(3785411784, 4 * 10**12), "quart qt"), "pint": ("m3", Fraction(3785411784, 8 * 10**12), "pint"),
    "cup": ("m3", Fraction(3785411784, 16 * 10**12), "cup"), "acre": ("m2", Fraction(40468564224, 10**7), "acre"),
    "ha": ("m2", 10000, "hectare ha"), "dollar": ("dollar", 1, "dollar usd buck"),
    "cent": ("dollar", Fraction(1, 100), "cent"), "euro": ("euro", 1, "euro eur"), "yen": ("yen", 1, "yen"),
    "rupee": ("rupee", 1, "rupee"), "yuan": ("yuan", 1, "yuan 元"), "pound_sterling": ("pound_sterling", 1, "sterling"),
    "degree": ("degree", 1, "degree deg"), "atm": ("kg m-1 s-2", 101325, "atm atmosphere"),
    "psi": ("kg m-1 s-2", 6894.757293168, "psi"), "mmHg": ("kg m-1 s-2", Fraction(101325, 760), "mmhg"),
    "hp": ("kg m2 s-3", 745.69987158, "horsepower hp"), "knot": ("m s-1", Fraction(1852, 3600), "knot kn"),
    "ly": ("m", 9460730472580800, "lightyear ly light-year"), "AU": ("m", 149597870700, "astronomicalunit"),
    "Å": ("m", Fraction(1, 10**10), "angstrom"), "cc": ("m3", Fraction(1, 10**6), "cc"),
    "rev": ("rev", 1, "revolution rev"), "celsius": ("celsius", 1, "celsius"), "G": ("kg s-2 A-1", Fraction(1, 10**4), "gauss"),
    "fahrenheit": ("fahrenheit", 1, "fahrenheit"), "arcsec": ("arcsec", 1, "arcsecond arcsec"), "slug": ("kg", 14.59390294, "slug"),
    "arcmin": ("arcmin", 1, "arcminute arcmin"), "u": ("kg", 1.66053906892e-27, "amu"), "micron": ("m", Fraction(1, 10**6), "micron"),
    "rpm": ("rev s-1", Fraction(1, 60), "rpm"), "unit": ("unit", 1, "unit"),
}  # fmt: skip
_SPEEDS = {"mph": ("mi", "h"), "kph": ("km", "h"), "kmph": ("km", "h"), "kmh": ("km", "h"), "fps": ("ft", "s"),
           "mps": ("m", "s")}  # fmt: skip
_LOWER = {"hz": "Hz", "khz": "kHz", "mhz": "MHz", "ghz": "GHz", "l": "L", "ml": "mL", "kb": "kB", "mb": "MB", "gb": "GB",
          "tb": "TB", "kpa": "kPa", "sec": "s", "hr": "h", "hrs": "h", "lbs": "lb", "yrs": "yr", "kgs": "kg", "cms": "cm",
          "kms": "km", "dl": "dL", "cl": "cL", "kwh": "kWh", "kw": "kW", "db": "dB", "km": "km", "kg": "kg", "cm": "cm",
          "mm": "mm", "torr": "Torr", "mpa": "MPa", "gpa": "GPa", "mol": "mol", "kj": "kJ", "mins": "min", "secs": "s",
          "AU": "AU", "au": "AU", "Nm": "N*m", "hour": "h"}  # fmt: skip
_NO_PREFIX = frozenset(["t", "min", "h", "day", "M"])


def _symbols() -> dict[str, tuple[str, Fraction | float]]:
    table: dict[str, tuple[str, Fraction | float]] = {}
    for symbol, (dimension, size, _) in _BASES.items():
        for prefix, power in _PREFIXES.items():
            if symbol not in _NO_PREFIX:
                factor = Fraction(10) ** power
                table[prefix + symbol] = (
                    dimension,
                    factor * size if isinstance(size, (int, Fraction)) else float(factor) * size,
                )
    for symbols in (_OTHERS, _BASES):
        table |= {symbol: (dimension, size) for symbol, (dimension, size, _) in symbols.items()}
    table |= {f"{prefix}M": ("mol m-3", Fraction(10) ** (_PREFIXES[prefix] + 3)) for prefix in "mun"}
    return table


_SYMBOLS = _symbols()


def _word_names() -> dict[str, str]:
    table: dict[str, str] = {}
    for symbol, (_, _, written) in {**_BASES, **_OTHERS}.items():
        for name in written.split():
            for plural in ("", "s"):
                table[name + plural] = symbol
            if symbol in _BASES and len(name) > 3:
                for prefix, short in PREFIX_NAMES.items():
                    table |= {f"{prefix}{name}{plural}": short + symbol for plural in ("", "s")}
    return table


_NAMES = _word_names()


@functools.lru_cache(maxsize=4096)
def unit_of(name: str) -> Unit | None:
    """Return the unit of a symbol or a word; None if no table has it."""
    if name in _LOWER:
        name = _LOWER[name]
    if name == "N*m":
        return (("N", 1), ("m", 1))
    if name.lower() in _SPEEDS:
        top, bottom = _SPEEDS[name.lower()]
        return tuple(sorted(((top, 1), (bottom, -1))))
    if name in _SYMBOLS:
        return ((name, 1),)
    symbol = _NAMES.get(name.lower().replace("-", ""))
    return ((symbol, 1),) if symbol else None


def product(first: Unit, second: Unit, power: int = 1) -> Unit:
    """Return the unit `first * second ** power`."""
    powers = dict(first)
    for symbol, exponent in second:
        powers[symbol] = powers.get(symbol, 0) + exponent * power
    return tuple(sorted((symbol, exponent) for symbol, exponent in powers.items() if exponent))


@functools.lru_cache(maxsize=4096)
def scale(unit: Unit) -> tuple[tuple[tuple[str, int], ...], Fraction | float]:
    """Return the dimensions of a unit, and its size in SI."""
    powers: dict[str, int] = {}
    size: Fraction | float = Fraction(1)
    for symbol, exponent in unit:
        dimension, factor = _SYMBOLS["K" if symbol == "celsius" and len(unit) > 1 else symbol]  # a difference
        size = size * (Fraction(factor) if isinstance(factor, int) else factor) ** exponent
        for part in dimension.split():
            base = part.rstrip("-0123456789")
            powers[base] = powers.get(base, 0) + int(part[len(base) :] or 1) * exponent
    return tuple(sorted((base, power) for base, power in powers.items() if power)), size


_ALIKE = (
    {"celsius", "C"}, {"fahrenheit", "F"}, {"degree", "celsius"}, {"degree", "fahrenheit"}, {"pound", "pound_sterling"},
)  # fmt: skip


def same_unit(first: Unit, second: Unit) -> bool:
    """Return whether two units are one unit: `Hz` and `1/s`, `98.6 F` and `98.6 degrees`."""
    if first == second:
        return True
    symbols = {symbol for symbol, _ in (*first, *second)}
    if len(first) == len(second) == 1 and any(symbols == pair for pair in _ALIKE):
        return True
    return scale(first) == scale(second)


def written(unit: Unit) -> str:
    """Return a unit as text."""
    return "*".join(symbol if power == 1 else f"{symbol}^{power}" for symbol, power in unit)
