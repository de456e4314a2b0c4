"""A tool of the model. It runs in the sandbox, in a process per call."""

CONSTANTS = {
    "speed of light": "299792458 m/s",
    "planck constant": "6.62607015e-34 J*s",
    "elementary charge": "1.602176634e-19 C",
    "boltzmann constant": "1.380649e-23 J/K",
    "avogadro constant": "6.02214076e23 1/mol",
    "gas constant": "8.314462618 J/(mol*K)",
    "standard gravity": "9.80665 m/s^2",
}


def constant(name: str) -> str:
    """Returns the value of a physical constant with its unit (CODATA 2022).

    Args:
        name: Name of the constant, such as "gas constant".
    """
    value = CONSTANTS.get(name.strip().lower())
    if value is None:
        raise ValueError(f"no constant {name!r}; known: {', '.join(CONSTANTS)}")
    return value
