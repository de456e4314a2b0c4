"""Which language a text is in, as IFEval asks: by langdetect, the library that IFEval's own script uses.

Used by instruction_checkers.py. The detector draws random numbers; here it is seeded and has its languages in a fixed
order, so that the same text always gets the same language. Nothing is downloaded: the library brings its languages'
profiles.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

LOOKED_AT = 40_000
"""Characters that the detector is given. It uses the first 10,000 that are no address of a page or a mailbox."""


def language(text: str) -> str | None:
    """The code of the language (`en`, `zh-cn`; `unknown`), or None for a text without letters of any language."""
    from langdetect.lang_detect_exception import LangDetectException

    detector = _languages().create()
    detector.append(text[:LOOKED_AT])
    try:
        return str(detector.detect())
    except LangDetectException:
        return None


@cache
def _languages() -> Any:
    """The 55 languages, read from the library's files: half a second, once."""
    from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory

    factory = DetectorFactory()
    factory.set_seed(0)
    factory.load_json_profile([file.read_text(encoding="utf-8") for file in sorted(Path(PROFILES_DIRECTORY).iterdir())])
    return factory
