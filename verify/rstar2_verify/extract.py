r"""Finds the answer in the text of a model: the last `\boxed{}`, else what follows the last `answer:`, else everything.

`final_answer` is the only place that knows what models and data sets put around an answer, so that an answer has the
same verdict in each of its wrappers. Runs in linear time. Standard library only.
"""

from __future__ import annotations

import re

from .lexicon import SCALES, word_set
from .signs import FONTS, SIGNS, TEXTS
from .units import unit_of

ENVIRONMENT = "begin"
"""Name of the command that opens an environment."""
_OPENED = rf"\\{ENVIRONMENT}\b"
_BOX = re.compile(r"\\f?boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BETWEEN = re.compile(r"(?:\\?[$,;)(\s]|\\quad|\\text\s*\{|\}|and|or|[a-z]\s*=)*")
"""Text between two boxes that are one answer: `$x=\\boxed{2}$ or $x=\\boxed{3}$`."""
_TAIL = re.compile(r"(?P<math>[^$\n]*?)(?:\$|\\\)|\\\]|\n|\Z)[$.*\s]*(?P<word>[^\W\d_]*(?:[/^]\w+)?)")
_SCALED = re.compile(
    rf"[$.*\s]*((?:{'|'.join(sorted(set(SCALES) - {'score', 'scores', 'gross'}))})\b)(?:\s+(dollars|cents|euros))?"
)
_STOP = re.compile(
    r"<[|\uff5c][^<>|\uff5c\s]{3,40}[|\uff5c]>|</?(?:s|br|p|div)\s*/?>|\[/?(?:END|INST)\]"
    r"|(?:\\q?quad\s*)?(?:\\(?:blacksquare|square|Box|qed)(?![a-zA-Z])|\u220e|\bQ\.E\.D\.?)(?=[\s$.\]\\]*\Z)"
)
"""Tags, stop tokens, and the mark of the end of a proof."""
_OPERAND = re.compile(
    r"(?:\\[dt]?frac\s*\{(?:[^{}]*\}\s*\{)?|\\sqrt\s*(?:\[[^\]]*\])?\{|\^\{?|(?<![-=])[<>]=?|[≤≥≠/]|!="
    r"|\\(?:[lg](?:t|eq?)|neq?|pm|mp|cdot|times|div|pi|ln|log|sin|cos|tan|exp)\s*|(?<![\w.])\d+|[-+±]|\{(?![^{}]*[a-z]{3})[^{}]*\})\Z"
)
"""Signs and commands of which a box after them is an operand: `x >`, `\\sqrt{`, `10^{`, `-`."""
_SEGMENT = re.compile(
    r"\$|\\[\[(]|\n|\\\\|&|(?<![<>!])=|[:;]|\.\s|\\q?quad|(?<![\\A-Za-z])[A-Za-z]{2,}(?=[\s,])"
    r"|\\text\s*\{[^{}]*\}|\\(?:to|Rightarrow|implies|therefore|approx)(?![a-zA-Z])|" + _OPENED + r"\{\w+\*?\}"
)
"""Ends of the text before a formula, or before a side of one."""
_SEPARATED = re.compile(r"\(\w+\)\s+-|>")
"""A dash after the letter of a part, and the mark of a quotation."""
_LIMITED = re.compile(
    r"\b(?:not|never|can't(?: be)?|cannot(?: be)?|isn't|(?:at|no) (?:least|most|more|less|fewer)(?: than)?|up to"
    r"|(?:more|less|fewer|greater|smaller|larger|bigger) than)\Z",
    re.IGNORECASE,
)
_REFUTED = re.compile(r"[$\s]*(?:(?:is|are) (?:not|wrong|incorrect|false)|isn't)\b")
_EXPLAINED = re.compile(
    r"[*_#>\s]*(?:explanation|reason(?:ing)?|justification|check|verification|note|proof|because|since|here|why"
    r"|this is)\b",
    re.IGNORECASE,
)
_BREAK = re.compile(r"\n|\.\s+(?=(?:This is|Note|Explanation|Because|Since|Here)\b)")
_CONNECTED = re.compile(
    r"[*_#>\s]*(?:so|thus|hence|therefore|then|or|and|which|for|where|with|if|when)\b", re.IGNORECASE
)
_PROSE = re.compile(r"(?:[^\W\d_]{2,}[\s,]+){2}|\d[^=\n]*=")
_VALUE = re.compile(
    r"[\s*$`({\[]*(?:(?:yes|no|true|false)\W*|\(?[A-J]\)?[).:][^=\n]*|\(?[A-J]\)?[*$.\s]*|(?!\d[.)]\s)[-+]?(?:\d|(?!\\\[\s*\Z|"
    + _OPENED
    + r")\\)[^=\n]*)",
    re.IGNORECASE,
)
"""A line that is only a value, or a choice with its content."""
_CHOSEN = re.compile(
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+)?(?:option|choice)\s+(\(?[A-J]\)?)\s+is\s+(?:the\s+)?(?:correct|right)\b.*",
    re.IGNORECASE | re.DOTALL,
)
_CONTRASTED = re.compile(r"(\(?[A-J]\)?|[$\d.]+)(?:,\s+|\s+\()(?:and\s+)?not\s+(?:\(?[A-J]\)?|[$\d.]+)\)?")
"""`C, not B`, `5 (not 6)`."""
_MARKER = re.compile(
    r"\banswers?\b(?:[ \t]+(?:to|for)\b[^.:\n]{0,80}?)?(?:[*_\s]*\b(?:is|are|(?:must|should) be)\b[*_]*"
    r"(?:[ \t]*:)?|[*_ \t]*[:=]|[ \t]*[*_#]*[ \t]*\n)[*_]{0,3}\s*",
    re.IGNORECASE,
)
_BULLET = re.compile(r"\s*(?:[-*+\N{BULLET}]|\d{1,2}[.)]) +(\S.*?)[\s,;]*\Z")
"""An item of a list, with a mark or a number, in a line of its own."""
_LINE = re.compile(
    r"(?![=+*/<>&^])(?:(?!"
    + _OPENED
    + r"|\\(?:end|left|right)\b|\\\\|[^\W\d_]{3})[^{}()\[\]&]|\\[a-zA-Z]+|\{[^{}]*\}|\([^()]*\))+"
)
"""A line that is a formula."""
_CLOSING = re.compile(r"\bI hope (?:it|this) is correct[.!\s]{0,9}\Z", re.IGNORECASE)
_WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\$\$((?:(?!\$).)*)\$\$", r"\$((?:\\.|[^$\\])+)\$", r"\\\(((?:(?!\\[()]).)*)\\\)",
        r"\\\[((?:(?!\\[\[\]]).)*)\\\]", r"\*\*(?!\s)((?:(?!\*\*\s).)*)\*\*", r"`+([^`]*)`+",
    )
)  # fmt: skip
MAX_WRAPPERS = 8
"""Wrappers inside of wrappers that are removed."""
_QUOTED = re.compile(r"\[\s*(['\"])(.*)\1\s*\]", re.DOTALL)
ESCAPED = word_set(
    "frac dfrac tfrac binom sqrt pi infty circ overline bar theta alpha beta end boxed nabla nu rho tau tan cot",
    "ln log sin cos sec vec hat emptyset varnothing lfloor rfloor right triangle pmod times neq",
) | {ENVIRONMENT}
"""Commands that a broken or doubled escape of JSON stands for."""
_DOUBLED = re.compile(
    r"\\\\(?=(?:" + "|".join(sorted(ESCAPED | TEXTS | FONTS | set(SIGNS) - set("{}\\|%&#_"))) + r")(?![a-zA-Z]))"
)
_SINGLE = re.compile(r"(?<!\\)\\(?![\\])[a-zA-Z]")


_CALLS = re.compile(
    r"(?:np|numpy|mpmath|mp|decimal)\.(?:float\d*|int\d*|uint\d*|mpf|Decimal|str_|bool_?)\(\s*['\"]?([^()'\"]*)['\"]?\s*\)"
)
_POINT = re.compile(r"\bPoint(?:[23]D)?\(")
_JOINED = re.compile(r"\b(And|Or)\(((?:[^()]|\([^()]*\))*)\)")
_OPERATOR = re.compile(r"(?<=\))\s*([&|])\s*(?=\(|[A-Z])")
_COMPLEX = re.compile(r"\bcomplex\(\s*([-+.\de]+)\s*,\s*([-+.\de]+)\s*\)")
_COLLECTION = re.compile(
    r"(?:np\.|numpy\.)?(?:array|set|frozenset|list|tuple|deque|dict_values|dict_keys)\((.*)\)", re.DOTALL
)
_QUOTED_CALL = re.compile(r"(?:float|int|Decimal|mpf|str)\(\s*['\"]?([^()'\"]*)['\"]?\s*\)")
_DICTIONARY = re.compile(r"\{\s*(?:['\"]?[A-Za-z]\w*['\"]?\s*:[^:{}]*)+\}")
_KEY = re.compile(r"['\"]?([A-Za-z]\w*)['\"]?\s*:")


def _unprinted(text: str) -> str:
    """Return a value that Python prints without its type: `np.float64(7.0)`, `set([1, 2])`, `{'x': 1}`."""
    if "\\" in text or len(text) > 2_000 or not text.endswith((")", "]", "}")):
        return text
    text = _POINT.sub("(", text)
    text = _conditions(text) if re.search("[<>]", text) else text
    text = _COMPLEX.sub(r"\1+(\2)i", _CALLS.sub(r"\1", text))
    for call in (_COLLECTION, _QUOTED_CALL):
        match = call.fullmatch(text)
        text = match[1].strip() if match else text
    return _KEY.sub(r"\1 =", text[1:-1]) if _DICTIONARY.fullmatch(text) else text


def _conditions(text: str) -> str:
    """Return conditions that SymPy prints, such as `Or(x < 1, And(2 < x, x < 3))` and `(x < 1) | (2 < x)`, in words."""
    text = _OPERATOR.sub(lambda sign: " and " if sign[1] == "&" else " or ", text)
    while joined := _JOINED.search(text):
        parts = re.sub(r",(?![^(]*\))", f" {joined[1].lower()} ", joined[2])
        text = f"{text[: joined.start()]}({parts}){text[joined.end() :]}"
    return text


def final_answer(text: str) -> str:
    r"""Return the answer of a text without what is around it: `\boxed{5}`, `**Answer:** $5$`, `#### 5`, `["5"]`."""
    text = re.sub("[\u200b\u200c\u200d\u2060\ufeff\xad]", "", text).replace("\u3002", ". ")
    text = _STOP.sub("\n", text.rpartition("</think>")[2] or text).strip(" \n")
    tagged = text.rpartition("<answer>")[2].partition("</answer>")[0].strip(" \n")
    text = tagged or text
    if "\\\\" in text and _DOUBLED.search(text) and not _SINGLE.search(text):
        text = text.replace("\\\\", "\\")
    for _ in range(MAX_WRAPPERS):
        before = text
        boxed = _boxed(text)
        text = _without_explanation(text) if boxed is None else boxed
        text = _CLOSING.sub("", text).strip(" \n")
        wrapped = _QUOTED.fullmatch(text)
        if wrapped and wrapped[1] not in wrapped[2]:
            text = wrapped[2]
        text = text if text.endswith(("...", "\\ ", "\\.")) else text.rstrip(" \t\n\r.")
        for wrapper in _WRAPPERS:
            match = wrapper.fullmatch(text)
            text = match[1].strip(" \n") if match and match[1].strip() else text
        text = _unprinted(text)
        if text == before:
            break
    return text


def _without_explanation(text: str) -> str:
    """Return what follows the last marker, without the explanation after a line that is only a value."""
    answer = _after_marker(text)
    first, rest = [*_BREAK.split(answer.strip(), maxsplit=1), ""][:2]
    value = _VALUE.fullmatch(first) and (first.count(" ") < 3 or not re.match(r"\W*[-+]?\d", first))
    explained = _EXPLAINED.match(rest) and (
        value or answer != text or (re.fullmatch(r"\*\*[^*]+\*\*", first) and ":" in rest[:40])
    )
    if explained or (value and _PROSE.search(rest.strip()[:200].partition("\n")[0]) and not _CONNECTED.match(rest)):
        answer = first
    chosen = _CHOSEN.fullmatch(answer) or _CONTRASTED.fullmatch(answer)
    return chosen[1] if chosen else answer


def _after_marker(text: str) -> str:
    items = [_BULLET.match(line) for line in text.split("\n")] if "\n" in text else []
    if items and all(items):
        return ", ".join(item[1] for item in items if item)
    lines = [line.strip(" $") for line in re.split(r"\n|(?<=\$\$)\s+(?=\$\$)", text) if line.strip(" $")]
    stated = all("=" in line for line in lines) or not re.search("[a-zA-Z]", text)
    if len(lines) > 1 and stated and all(map(_LINE.fullmatch, lines)):
        return ", ".join(line.rstrip(" .,;") for line in lines)
    if "####" in text:
        return text.rpartition("####")[2]
    for marker in reversed(list(_MARKER.finditer(text))):
        rest = text[marker.end() :].strip()
        levels = [brace for brace in _BRACE.findall(rest) if brace in "{}"]
        if levels.count("}") == levels.count("{") + 1:  # `\text{The answer is }5`, `\text{Answer: C}`
            rest = rest[1:] if rest.startswith("}") else rest.removesuffix("}")
        if text[: marker.end()].count("**") % 2:  # `**Answer: 5**`
            rest = re.sub(r"\*\*(?=[\s.]*\Z|\.?\s)", "", rest, count=1)
        if rest.strip(" \n.*"):
            return rest
    return text


def boxes(text: str) -> list[tuple[int, int, int]]:
    """Return start, start of the content and its end of each box with balanced braces."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text) if "boxed" in text else ():
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            closing[opened.pop()] = match.start()
    return [(box.start(), box.end(), closing[box.end() - 1]) for box in _BOX.finditer(text) if box.end() - 1 in closing]


def _boxed(text: str) -> str | None:
    """Return the last box, with a sign before it, boxes joined to it, and the unit after it."""
    places = boxes(text)
    if not places:
        return None
    start, first, end = places[-1]
    parts = [text[first:end].strip()]
    for earlier, content, closed in reversed(places[:-1]):
        between = text[closed + 1 : start]
        if closed > start:
            continue  # a box inside of a box
        if not between.strip(" $") or not _BETWEEN.fullmatch(between):
            break
        parts.insert(0, text[content:closed].strip() + (" or " if "or" in between else ", "))
        start = earlier
    answer = "".join(parts)
    tail = _TAIL.match(text, end + 1)
    after = tail["math"] if tail else ""
    before = text[max(start - 200, 0) : start].rstrip("$ \n")
    segment = before[max((match.end() for match in _SEGMENT.finditer(before)), default=0) :].strip()
    limited = _LIMITED.search(before)
    if (_OPERAND.search(segment) and not _SEPARATED.fullmatch(segment)) or (
        "," in segment and re.match(r"\\?[(\[]", segment)
    ):
        return f"{segment}{{{answer}}}{after}"
    if limited or _REFUTED.match(text, end + 1):
        return f"{limited[0] if limited else 'not'} {answer}"
    if tail and not re.match(r"[\s.,;:!?*}]*\Z|\s*\\end\b|[.,;:]?\s+[A-Za-z]|\s*[.,;]\s", after):
        answer += " " + after.rstrip(" .,;:")
    elif scaled := _SCALED.match(text, end + 1):
        answer += " " + " ".join(filter(None, scaled.groups()))
    elif tail and tail["word"] and unit_of(tail["word"].lower()) and tail["word"] != "a":
        answer += " " + tail["word"]
    return answer
