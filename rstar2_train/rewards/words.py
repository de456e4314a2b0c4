r"""Words as answers: names, choices, the words for numbers and sets (`none`, `all real numbers`, `seven`).

`verify.compare` calls it before `normalize`: an answer that is only words has no value for a parser. Pure.
"""

from __future__ import annotations

import re

from rstar2_train.rewards.chinese import HAN
from rstar2_train.rewards.normalize import plain_latex
from rstar2_train.rewards.units import FONT

_NO_SOLUTION = (
    "none;there are none;no such n;no such x;no such number;no such integer;"
    "empty set;the empty set;no solution;no solutions;no real solution;no real solutions;there are no solutions;"
    "there is no solution;has no solution;no such values;no roots;no real roots;no solution exists;no solutions exist"
)
_UNDEFINED = "undefined;not defined;is undefined;does not exist;dne;limit does not exist;the limit does not exist"
_INFINITE = (
    "infinitely many;infinitely many solutions;infinite;infinite solutions;infinitely many values;"
    "infinite number of solutions;there are infinitely many solutions"
)
_REALS = (
    "every real number;any real number;"
    "all real numbers;all reals;real numbers;all real values;the real numbers;the set of real numbers;"
    "the set of all real numbers;all real numbers x;all real x;all real values of x"
)
_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_CARDINALS = {word: number for number, word in enumerate(_NUMBERS.split())}
_CARDINALS |= {word: 10 * number for number, word in enumerate(_TENS.split(), start=2)}
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth"
_PARTS = {word: number for number, word in enumerate(_ORDINALS.split(), start=1) if number > 2}
_PARTS |= {"half": 2, "halve": 2, "quarter": 4, "eleventh": 11, "twelfth": 12, "twentieth": 20, "hundredth": 100}
_SIGN = r"(?P<sign>(?:negative|minus) )?"
_FRACTION = re.compile(rf"{_SIGN}(?:(?P<top>[a-z]+)[ -])?(?P<part>{'|'.join(_PARTS)})s?")
"""`two thirds`, `negative one half`, `quarter`."""
_ONE_PART = re.compile(rf"(?i)\ba (?=(?:{'|'.join(_PARTS)})\b)")
_OUT_OF = re.compile(r"(\d+) (?:out of|in every|in) (\d+)")
_VALUES = {
    **dict.fromkeys(_NO_SOLUTION.split(";"), r"\emptyset"),
    **dict.fromkeys(_UNDEFINED.split(";"), r"\text{undefined}"),
    **dict.fromkeys(_REALS.split(";"), r"\mathbb{R}"),
    **dict.fromkeys(_INFINITE.split(";"), r"\text{infinitely many}"),
    **dict.fromkeys(["convergent", "series converges", "it converges"], r"\text{converges}"),
    **dict.fromkeys(["divergent", "series diverges", "it diverges"], r"\text{diverges}"),
    **dict.fromkeys(["all integers", "integers", "set of integers", "set of all integers"], r"\mathbb{Z}"),
    **dict.fromkeys(["all positive real numbers", "positive real numbers", "all positive reals"], r"(0,\infty)"),
    **dict.fromkeys(["all negative real numbers", "negative real numbers", "all negative reals"], r"(-\infty,0)"),
    **dict.fromkeys(["infinity", "positive infinity", "plus infinity"], r"\infty"),
    **dict.fromkeys(["negative infinity", "minus infinity", "-infinity"], r"-\infty"),
    **dict.fromkeys(["noon", "12 noon"], r"12:00\text{ pm}"),
    **dict.fromkeys(["midnight", "12 midnight"], r"12:00\text{ am}"),
    **{word: str(number) for number, word in enumerate(_ORDINALS.split(), start=1)},
}
_TEXT_WORDS = re.compile(
    r"\\(?:text|mbox)\s*\{(?!\s*(?:and|or|otherwise|else(?:where)?)\s*\})([^{}]*[A-Za-z]{2}[^{}]*)\}(?!\s*(?:[(\[][^()=]*[)\]]\s*=|[)\]]\s*=|=|[a-z]\s*\\in))"
)
_SPACES = r"(?:[\s~:]|\\[ ,;:]|\\q?quad(?![a-zA-Z]))*"
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_DATE = re.compile(rf"(\d{{1,2}})(?:st|nd|rd|th)?(?:\sof)?\s({_MONTHS})|({_MONTHS})\s(\d{{1,2}})(?:st|nd|rd|th)?")
_REALS_EXCEPT = r"(?:[Aa]ll\s)?(?:real numbers|reals)(?:\sx)?,?\sexcept(?:\sfor)?"
_POWERS = re.compile(r"(?:(?:all|any|every|the) )?(?:n is )?(?:an? )?(?:perfect )?powers? of (\d+|two|three|five|ten)")
_MULTIPLES = re.compile(r"(?:all |every )?(positive )?(?:integer )?multiples? of (\d+)")
_EXCEPT = re.compile(
    rf"\\text\s*\{{\s*{_REALS_EXCEPT}\s*\}}\s*(?:[a-z]\s*=\s*)?([^{{}}]*\S)"
    rf"|(?:\\text\s*\{{\s*)?{_REALS_EXCEPT}\s(?:[a-z]\s*=\s*)?([^{{}}]*[^{{}}\s])\}}?"
)
"""`\\text{all real numbers except }2`, with a number."""
_AND = re.compile(r"\s*\\text\s*\{\s*and\s*\}\s*")
_CHOICES = (
    re.compile(
        rf"(?:{FONT}\{{\s*\(([A-J])\)(?:\s|\\[ ,;:])*\}}|\(([A-J])\)(?=[\s~\\:])){_SPACES}(?=[\w$\\.(\[-])(.+)",
        re.DOTALL,
    ),
    re.compile(rf"(?:{FONT}\{{\s*([A-J])[.):]\s*\}}|([A-J])[.):](?=[\s~\\])){_SPACES}(?=[\d$\\(\[-])(.+)", re.DOTALL),
)
"""A choice with its content: `\\textbf{(D)}\\ 12`, `D. 12`. Without parentheses the content is not a word."""
_HEADINGS = "point|points|ratio|interval|domain|range|set|value|values|line|circle|maximum|minimum|area|probability"
_HEADING = re.compile(
    rf"(?:{FONT}\{{\s*(?:[A-Za-z][A-Za-z ]*:|(?i:(?:the )?(?:{_HEADINGS})(?: is:?)?))\s*\}}"
    rf"|(?i:(?:the )?(?:{_HEADINGS})(?: is)?:?\s)|[A-Z][a-z]+:\s)\s*(?P<value>[^:]*\d[^:]*|\S+:\S+)",
    re.DOTALL,
)
_WHOLE_CHOICE = re.compile(FONT + r"\{\s*(\([A-J]\))\s+([-\d][^{}]*)\}")
_OPERATOR = re.compile(r"\\(?:cup|cap|setminus|times|cdot|pm|in|le|ge|to|subset)")


def spoken_value(text: str) -> str:
    r"""Return the LaTeX of an answer in words: `\emptyset` for `none`, `7` for `seven`; other texts unchanged."""
    if len(text) >= 80:
        return text
    spoken = normalize_words(_ONE_PART.sub("one ", text))
    parity = _integers_in_words(spoken)
    if parity:
        return parity
    multiples = _MULTIPLES.fullmatch(spoken.replace("\\text", ""))
    if multiples:
        return rf"{multiples[2]}k, k\in\mathbb{{Z}}{'^+' if multiples[1] else ''}"
    powers = _POWERS.fullmatch(spoken.replace("\\text", ""))
    if powers:
        return f"{_CARDINALS.get(powers[1], powers[1])}^k"
    date = _DATE.fullmatch(spoken)
    if date:
        return rf"\text{{{date[2] or date[3]} {date[1] or date[4]}}}"
    excluded = _EXCEPT.fullmatch(_AND.sub(", ", plain_latex(text)))
    if excluded:
        return rf"\mathbb{{R}}\setminus\{{{excluded[1] or excluded[2]}\}}"
    return _VALUES.get(spoken.replace("-", " "), _VALUES.get(spoken)) or spoken_number(spoken) or text


def _integers_in_words(spoken: str) -> str | None:
    r"""Return one text for `all odd n`, `n is odd`, `odd integers` and `\text{odd }n`; None for other texts."""
    parts = spoken.replace("\\text", " ").split()
    kinds = {"odd", "even", "positive", "negative", "prime", "composite"}.intersection(parts)
    fillers = {"all", "every", "any", "is", "integer", "integers", *"kmn"}
    if not kinds or not fillers.intersection(parts) or not set(parts) <= kinds | fillers:
        return None
    if len(parts) != len(set(parts)) or {"odd", "even"} <= kinds or len(set(parts) & set("kmn")) > 1:
        return None
    if kinds in ({"odd"}, {"even"}):
        return r"2k+1, k\in\mathbb{Z}" if kinds == {"odd"} else r"2k, k\in\mathbb{Z}"
    return rf"\text{{{' '.join(sorted(kinds))} integers}}"


def spoken_number(spoken: str) -> str | None:
    r"""Return the LaTeX of `twenty-five`, `negative one`, `two thirds` and `ten percent`; None for other texts."""
    share = spoken_number(spoken.removesuffix(" percent")) if spoken.endswith(" percent") else None
    if share:
        return rf"{share}\%"
    fraction, quotient = _FRACTION.fullmatch(spoken), _OUT_OF.fullmatch(spoken)
    if quotient:
        return rf"\frac{{{quotient[1]}}}{{{quotient[2]}}}"
    if fraction and (fraction["top"] in _CARDINALS or spoken in ("half", "quarter", "negative half", "minus half")):
        top, bottom = _CARDINALS[fraction["top"] or "one"], _PARTS[fraction["part"]]
        return rf"{'-' * bool(fraction['sign'])}\frac{{{top}}}{{{bottom}}}"
    sign, rest = ("-", spoken.partition(" ")[2]) if spoken.startswith(("negative ", "minus ")) else ("", spoken)
    parts = re.split(r"[\s-]+", re.sub(r"(hundred|thousand|million|billion), ", r"\1 ", rest))
    if not all(part in _SCALES or part in _CARDINALS for part in parts):
        return None
    whole, group, last = 0, 0, 0
    for part in parts:
        if part in _SCALES:
            scale = _SCALES[part]
            if not group or (scale > 100 and last and scale >= last):
                return None
            whole, group, last = (whole, group * 100, last) if scale == 100 else (whole + group * scale, 0, scale)
            continue
        value = _CARDINALS[part]
        if group % 100 and not (group % 100 >= 20 and group % 10 == 0 and 0 < value < 10):
            return None
        group += value
    return f"{sign}{whole + group}"


def without_choice(answer: str, gold: str) -> tuple[str, str]:
    """Return both answers without the letter or without the content of `(D) 12`, as the other side requires.

    The letters remain when both have one and they differ.
    """
    ours, theirs = _choice(answer), _choice(gold)
    if ours and theirs:
        return (ours[1], theirs[1]) if ours[0] == theirs[0] else (ours[0], theirs[0])
    if ours:
        answer = ours[0] if re.fullmatch("[a-j]", normalize_words(gold)) else ours[1]
    if theirs:
        gold = theirs[0] if re.fullmatch("[a-j]", normalize_words(answer)) else theirs[1]
    return answer, gold


def _choice(text: str) -> tuple[str, str] | None:
    """Return (letter, content) of a choice with its content."""
    whole = _WHOLE_CHOICE.fullmatch(text.strip())
    text = f"{whole[1]} {whole[2]}" if whole else text
    match = next(filter(None, (choice.fullmatch(text.strip()) for choice in _CHOICES)), None)
    if match is None or _OPERATOR.match(match[3].strip()):
        return None
    return f"({match[1] or match[2]})", match[3].strip()


def without_heading(answer: str, gold: str) -> tuple[str, str]:
    r"""Return both answers without words that announce a value: `\text{Domain: }`, `the point`."""
    parts = [_HEADING.fullmatch(text.strip()) for text in (answer, gold)]
    if all(parts):
        return answer, gold
    first, second = (part["value"] if part else text for part, text in zip(parts, (answer, gold), strict=True))
    return first, second


def normalize_words(text: str) -> str:
    """Return an answer's words in lower case: `c` for `\\text{(C)}` and `Choice C`, `evelyn` for `\\text{Evelyn.}`."""
    plain = re.sub(FONT + r"(?=\{)|[{}$*\"]", "", plain_latex(text)).casefold()
    plain = re.sub(rf"(?<={HAN})[、,]\s*(?={HAN})", "", plain)
    plain = re.sub(r",?\s+and\s+|\s*,\s*", ", ", " ".join(plain.split())).strip(".,:;() ")
    plain = re.sub(r"^(?:an?|the)\s(?=[a-z]{3})|(?<=\w)\sonly$", "", plain)
    return re.sub(r"^(?:the\s)?(?:correct\s)?(?:choice|option|answer)(?:\sis)?\s*:?\s*\(?(?=[a-z]$)", "", plain)


def is_word_answer(gold: str) -> bool:
    """Return whether a gold answer is words, which are compared as words: letters in `\\text{}`, or a bare word."""
    bare = re.fullmatch(r"(?:[A-Za-z]{4,}|[A-Z][a-z]{2,}|(?i:yes|no))(?: [A-Za-z]{2,})*", gold.strip())
    choice = re.fullmatch(r"\([A-J]\)", gold.strip())
    chinese = re.fullmatch(rf"{HAN}(?:{HAN}|[、,])*", plain_latex(gold))
    return bool(
        bare or choice or chinese or re.fullmatch(FONT + r"\{[^{}\d\\^_=+<>]*[A-Za-z][^{}\d\\^_=+<>]*\}", gold.strip())
    )


def has_other_words(value: str, other: str) -> bool:
    """Return whether a plain value has words that the other one lacks, as in `\\text{not } 0`.

    Labels before `=`, words before `k\\in`, `and` and `or` do not count. The letters of `\\text{MR}` are in `MR`.
    """
    return any(word.strip(" .,") not in other for word in _TEXT_WORDS.findall(value))
