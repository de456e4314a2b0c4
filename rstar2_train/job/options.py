"""Types of command-line options that several commands have. Here, in the room that every program may import."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """A whole number of at least 1. Raises argparse's error, which names the option."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
