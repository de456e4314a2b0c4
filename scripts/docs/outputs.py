"""Outputs of commands, as the pages show them: `python -m scripts.docs.outputs` runs the commands again.

A block of a page that follows a comment `output of: COMMAND` has the output of this command. Of `rstar2 plan` it has
the part before the assumptions. The unit tests run the commands too, and compare.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex

from scripts.docs.repository import ROOT

PAGES = {"debugging-rewards.md": 1, "gpu.md": 3}
"""Page -> number of its outputs."""
COLUMNS = 120
_OUTPUT = re.compile(r"(<!-- output of: rstar2 (?P<command>[^\n]*) -->\n```\n)(?P<output>.*?)(?=```\n)", re.DOTALL)
_TRAILING = re.compile(r"[ \t]+$", re.MULTILINE)


def output_of(command: str) -> str:
    """Run a subcommand of `rstar2` in the root of the clone; return its output without the assumptions."""
    from rstar2_train.cli.main import main

    printed = io.StringIO()
    before = dict(os.environ)
    os.environ["COLUMNS"] = str(COLUMNS)
    try:
        with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed):
            main(shlex.split(command))
    finally:
        os.environ.clear()
        os.environ.update(before)
    return _TRAILING.sub("", printed.getvalue().partition("\nAssumptions")[0]).rstrip() + "\n"


def refreshed(page: str) -> str:
    """Return a page with the present output of each of its commands."""
    return _OUTPUT.sub(lambda match: match[1] + output_of(match["command"]), page)


if __name__ == "__main__":
    for name in PAGES:
        path = ROOT / "docs" / name
        path.write_text(refreshed(path.read_text("utf-8")), encoding="utf-8")
