"""The command `rstar2-verify KNOWN ANSWER`: prints the verdict; exits with 0 if both are equal, else with 1 or 2."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .tree import Node
from .units import written
from .verifier import verify

EXIT_CODES = {"equal": 0, "different": 1, "undecided": 2}
"""Outcome of a verdict -> exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the verdict on an answer and return the exit code."""
    parser = argparse.ArgumentParser(prog="rstar2-verify", description="Compare an answer with a known answer.")
    parser.add_argument("known", help="the known answer, in LaTeX or plain text")
    parser.add_argument("answer", help="the answer to check")
    parser.add_argument("--kind", choices=("choice", "text"), help="compare choices or words only")
    parser.add_argument("--explain", action="store_true", help="print the reason and the typed values")
    options = parser.parse_args(arguments)
    verdict = verify(options.known, options.answer, options.kind)
    print(verdict.outcome)
    if options.explain:
        print(f"reason: {verdict.reason}")
        print(f"known:  {described(verdict.known)}")
        print(f"answer: {described(verdict.answer)}")
    return EXIT_CODES[verdict.outcome]


def described(node: Node | None) -> str:
    """Return a typed value as one line of text. None: the grammar does not cover it, or the verdict needed no type."""
    if node is None:
        return "not typed: the reason has what was compared"
    if node.kind == "number":
        return f"number {node.number}"
    inner = ", ".join(described(part) for part in node.parts)
    text = written(node.unit) if node.unit else node.text
    return " ".join(filter(None, (node.kind, text))) + (f"({inner})" if inner else "")


if __name__ == "__main__":
    raise SystemExit(main())
