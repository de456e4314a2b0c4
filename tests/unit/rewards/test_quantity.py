"""Quantities: reading a number with a unit, and equality of two quantities."""

from __future__ import annotations

import time

import pytest

from rstar2_train.rewards.quantity import Quantity, check_unit, equal_quantities, read_quantity


def equal(got: str, gold: str, *, relative: float = 1e-3, absolute: float = 0.0, needs_unit: bool = False) -> bool:
    ours, theirs = read_quantity(got), read_quantity(gold)
    assert theirs is not None
    return ours is not None and equal_quantities(
        ours, theirs, relative=relative, absolute=absolute, needs_unit=needs_unit
    )


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("1,234.5", 1234.5, ""),
        (r"3.0 \times 10^8 \text{ m/s}", 3e8, "m/s"),
        (r"$3.0\times10^{8}\,\mathrm{m/s}$", 3e8, "m/s"),
        ("1.2e-3 M", 1.2e-3, "M"),
        ("5 kJ/mol", 5.0, "kJ/mol"),
        ("2 \N{MULTIPLICATION SIGN} 10⁻³ m", 2e-3, "m"),
        ("-.5", -0.5, ""),
    ],
)
def test_read_quantity_reads_common_forms(text: str, value: float, unit: str) -> None:
    """Plain, LaTeX and Unicode notations."""
    read = read_quantity(text)
    assert read is not None and read.value == pytest.approx(value) and read.unit == unit


@pytest.mark.parametrize("text", ["", "m", "1e9999", "nan m", "1" * 500, "5 m; 6 m"])
def test_read_quantity_other_text_is_none(text: str) -> None:
    """A text that is not one number with a unit has no quantity."""
    assert read_quantity(text) is None


@pytest.mark.parametrize(
    ("got", "gold", "expected"),
    [
        ("1 km", "1000 m", True),
        ("1 kcal", "4.184 kJ", True),
        ("25 °C", "298.15 K", True),
        ("1 mM", "0.001 mol/L", True),
        ("50 %", "0.5", True),
        ("8.314 J/(mol K)", "8.314 J/mol/K", True),
        ("9.81 m/s^2", "9.81 m/s²", True),
        ("6.022e23 /mol", "6.022e23 1/mol", True),
        ("1 m", "1 s", False),
        ("1 gronk", "1 m", False),
        ("5", "5 m", True),
        ("1.01", "1.0", False),
    ],
)
def test_equal_quantities_converts_units(got: str, gold: str, expected: bool) -> None:
    """Units are converted; another dimension or an unknown unit is wrong."""
    assert equal(got, gold) is expected


def test_equal_quantities_applies_tolerances() -> None:
    """The larger tolerance applies; an answer of 0 needs an absolute one."""
    assert equal("1.009", "1", relative=0.01) and not equal("1.011", "1", relative=0.01)
    assert equal("0.001", "0", absolute=0.01) and not equal("0.001", "0")
    assert not equal("5", "5 m", needs_unit=True) and equal("500 cm", "5 m", needs_unit=True)


@pytest.mark.parametrize(
    "unit", ["9**9**9**9", "m**10**10**9", "(" * 50 + "m", "m*" * 29 + "m", "m^999999", "9^9^9^9", "m" * 200]
)
def test_hostile_unit_is_wrong_and_cheap(unit: str) -> None:
    """A unit that would be costly to parse is wrong within a fraction of a second."""
    started = time.process_time()
    assert not equal_quantities(Quantity(1.0, unit), Quantity(1.0, "s"), relative=0.1, absolute=0, needs_unit=False)
    assert time.process_time() - started < 5


def test_check_unit_names_unknown_units() -> None:
    """A gold answer with an unknown unit is an error of the data."""
    check_unit("kJ/mol")
    with pytest.raises(ValueError, match="unknown unit 'gronk'"):
        check_unit("gronk")
