"""Calls one function of a user inside the judge's sandbox. Standard library only; it runs there, never here.

`sandbox_program.py` sends the text of this module to the judge, with a call of `main` at its end. Standard input holds
the arguments and the files of the row.
"""

import base64
import contextlib
import importlib
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

FOLDER = Path("/tmp")
"""Working directory of the call: it holds the files of the row."""


def main(packed: str, module: str, function: str, *, scores: bool) -> None:
    """Import `module` from the packed sources, call `function`, print its result. `scores`: as a score and a reason.

    Without standard input it only imports. A failed call prints one line to stderr and exits with status 1.
    """
    os.chdir(FOLDER)
    text = sys.stdin.read()
    call = json.loads(text) if text else {"files": {}}
    folder = FOLDER / ".source"
    for name, source in json.loads(zlib.decompress(base64.b85decode(packed))).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    for name, content in call["files"].items():
        file = FOLDER / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(base64.b64decode(content))
        file.chmod(0o444)
    sys.path.insert(0, str(folder))
    try:
        with contextlib.redirect_stdout(sys.stderr if scores else sys.stdout):
            imported = getattr(importlib.import_module(module), function)
            result = imported(**call["arguments"]) if "arguments" in call else (0.0 if scores else "")
        text = _score_text(result) if scores else _result_text(result)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
        sys.exit(1)
    sys.stdout.write(text + "\n")


def _result_text(result: Any) -> str:
    """Return what the model reads: text unchanged, other values as JSON."""
    return "" if result is None else result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _score_text(result: Any) -> str:
    """Return the score and the reason of a checker as JSON. Raises TypeError for another result."""
    score, reason = result if isinstance(result, tuple) and len(result) == 2 else (result, "")
    if not isinstance(score, (bool, int, float)) or not isinstance(reason, str):
        raise TypeError(f"the checker must return a score, or a score and a reason, not {result!r}")
    return json.dumps({"score": float(score), "reason": reason})
