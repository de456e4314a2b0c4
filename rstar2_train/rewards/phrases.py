r"""Words around a value that do not change it, or that are its sign: `the answer is 7`, `x=2 only`, `negative 3`.

`normalize` applies REWRITES after the other notations, to the answer and to the gold answer. Pure; standard library
only. Each pattern takes linear time.
"""

from __future__ import annotations

from rstar2_train.rewards.units import FONT


def _text(phrase: str) -> str:
    r"""Return the pattern of words as they are, or in one font command; blanks around them belong to it."""
    return rf"\s*(?:{FONT}\{{\s*(?:{phrase})\s*\}}|(?<![a-zA-Z\\])(?:{phrase})(?![a-zA-Z]))\s*"


_ANSWER = r"(?:[Tt]he )?(?:[Ff]inal )?[Aa]nswer(?: is:?|:)"
_CHANGE = r"(?:[Aa]n? )?(?:(?:in|de)creas(?:e|es|ed|ing)|gain|profit|loss|discount|reduction)(?: of| by)"
_LIMIT = r"(?:[Tt]he (?:series|sequence|integral|limit) |[Ii]t )?(?:(?:(?:con|di)verges|tends|goes) to|approaches)"
_CHANGED = r"(?:in|de)crease|gain|profit|loss|discount|reduction|more|less|higher|lower"
_EXTREMUM = r"(?:[Tt]he )?(?:[Ll]ocal |[Gg]lobal |[Aa]bsolute )?(?:[Mm]ax|[Mm]in)imum(?: value)?(?: is| of| at)?:?"
_MULTIPLICITY = r"\((?:double|triple|repeated)(?: root)?\)|\(multiplicity \d\)"
_REMAINDER = r"(?:with )?(?:a )?(?:R|r|[Rr]em(?:ainder)?\.?)(?: of)?"

REWRITES = [
    (rf"^\s*{FONT}\{{\s*{_ANSWER}\s*\}}", ""),
    (rf"^\s*{_ANSWER}\s+(?=\S)", ""),
    (rf"^\s*{FONT}\{{\s*(?:[Tt]hus|[Tt]herefore|[Hh]ence|[Ss]o),?\s*\}}", ""),
    (rf"^\s*{FONT}\{{\s*{_ANSWER}\s+([^{{}}]+)\}}", r"\\text{\1}"),
    (rf"(?<=[\d}})\s]){_text('[Oo]nly')}$", ""),
    (rf"^{_text('[Oo]nly')}(?=\S)", ""),
    (rf"^{_text('(?:[Nn]egative|[Mm]inus)')}(?=[\d.]|\\(?:frac|sqrt|pi|infty)(?![a-zA-Z]))", "-"),
    (rf"^{_text(f'[Ee]xactly|{_EXTREMUM}')}(?=[-\d\\]|[a-z]\s*=)", ""),
    (rf"\s*(?:{FONT}\{{\s*(?:{_MULTIPLICITY})\s*\}}|{_MULTIPLICITY})", ""),
    (rf"^{_text(_CHANGE)}(?=[\d\\$])", ""),
    (rf"(?<=%){_text(_CHANGED)}$", ""),
    (rf"^{_text(_LIMIT)}(?=[-+\d\\]|infinity)", ""),
    (rf"^\s*(\d+){_text(_REMAINDER)}(\d+)\s*$", r"(\1,\2)"),
    (r"^\s*(\d+)\s*'\s*(\d+)\s*(?:''|\")\s*$", r"\1\\text{ ft }\2\\text{ in}"),
    (r"\\vec\s*(?:\{\s*0\s*\}|0(?!\d))", "0"),
]
"""(pattern, replacement), in this order."""
