"""Types of command-line options that several commands have: argparse's own message then names the option.

Here, in the room that every program may import.
"""

from __future__ import annotations

import argparse
from typing import Literal

ACCELERATORS: dict[str, Literal["AMD", "NVIDIA", "None"]] = {"none": "None", "nvidia": "NVIDIA", "amd": "AMD"}
"""Value of the option --accelerator -> spec.accelerator.vendor."""


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def port(text: str) -> int:
    """A TCP port, or 0 for a free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def seconds(text: str) -> float:
    """A time that passes."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: more than 0 seconds")
    return number
