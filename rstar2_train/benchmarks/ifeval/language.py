"""Detects the language of a text for IFEval, with langdetect, the library of IFEval's own script.

Used by instruction_checkers.py. The detector uses random numbers; here it has a seed and a fixed order of languages, so
that a text always has the same language. The library includes the profiles of its languages; no download is needed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

MAX_CHARACTERS = 40_000
"""Characters of a text that the detector receives. It uses the first 10,000 outside of URLs and mail addresses."""


def detect_language(text: str) -> str | None:
    """Return the code of the language (`en`, `zh-cn`; `unknown`), or None for a text without letters."""
    from langdetect.lang_detect_exception import LangDetectException

    detector = _languages().create()
    detector.append(text[:MAX_CHARACTERS])
    try:
        return str(detector.detect())
    except LangDetectException:
        return None


@cache
def _languages() -> Any:
    """Return the detector's 55 languages, read once from the library's files in half a second."""
    from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory

    factory = DetectorFactory()
    factory.set_seed(0)
    factory.load_json_profile([file.read_text(encoding="utf-8") for file in sorted(Path(PROFILES_DIRECTORY).iterdir())])
    return factory
