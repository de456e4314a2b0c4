"""Types of command-line options. argparse adds the name of the option to their error messages."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Literal

from rstar2_train.utils.local_path import is_no_path, local_path

ACCELERATORS: dict[str, Literal["AMD", "NVIDIA", "None"]] = {"none": "None", "nvidia": "NVIDIA", "amd": "AMD"}
"""Value of the option --accelerator -> spec.accelerator.vendor."""


def user_path(text: str) -> Path:
    """Return a path, with the home folder in place of `~`: a shell does not replace it after `--out=`."""
    if text == "-" or is_no_path(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the path of a file or folder")
    try:
        return local_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def count(text: str) -> int:
    """Return an integer of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def port(text: str) -> int:
    """Return a TCP port, or 0 for a free port."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 0 and 65535")
    return int(text)


def seconds(text: str) -> float:
    """Return a finite number of seconds above 0."""
    return _above_zero(text, "a number of seconds above 0")


def positive(text: str) -> float:
    """Return a finite number above 0."""
    return _above_zero(text, "a number above 0")


def _above_zero(text: str, kind: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not {kind}")
