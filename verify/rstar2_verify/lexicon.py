"""The words that an answer may have: functions, numbers, words without meaning, and words that change a value.

Each table is data: adding a word is one entry. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def word_set(*texts: str) -> frozenset[str]:
    """Return the words in texts with blanks between them."""
    return frozenset(" ".join(texts).split())


FUNCTIONS = word_set(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arsinh arcosh",
    "artanh ln log lg exp cis sqrt cbrt max min gcd lcm det arg Re Im sgn floor ceil abs",
)
FUNCTION_ALIASES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "cosec": "csc", "tg": "tan", "ctg": "cot",
    "arctg": "arctan", "arcsinh": "arsinh", "arccosh": "arcosh", "arctanh": "artanh", "asinh": "arsinh",
    "acosh": "arcosh", "atanh": "artanh", "sign": "sgn", "Abs": "abs", "ceiling": "ceil", "acot": "arccot",
    "Max": "max", "Min": "min",
}  # fmt: skip
GREEK = word_set(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi chi",
    "psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega hbar ell nabla aleph wp",
)
MATH_WORDS = {
    "pi": "pi", "inf": "infty", "oo": "infty", "infinity": "infty", "Infinity": "infty", "binomial": "binomial",
    "comb": "binomial", "binom": "binomial", "nCr": "binomial", "perm": "permutations", "Rational": "Rational",
    "Fraction": "Rational", "Matrix": "Matrix", "Interval": "Interval", "Union": "Union", "FiniteSet": "FiniteSet",
    "Reals": "R", "Eq": "Eq", "Poly": "Poly", "factorial": "factorial", "EmptySet": "emptyset", "zoo": "zoo",
    "gamma": "gamma", "exp_polar": "exp", "Integer": "Integer", "Float": "Integer", "Pow": "Pow", "Mul": "Mul",
    "Add": "Add", "conjugate": "conjugate", "otimes": "otimes", "MutableDenseMatrix": "Matrix", "Piecewise": "Piecewise",
    "ImmutableDenseMatrix": "Matrix", "root": "sympyroot", "Ne": "Ne", "Le": "Le", "Lt": "Lt", "Ge": "Ge", "Gt": "Gt",
    "Open": "Interval.open", "diag": "diag",
}  # fmt: skip
"""Words of Python, SymPy and plain text -> command."""

DISTRIBUTIONS = {
    "Binomial": "Bin", "Binom": "Bin", "Normal": "N", "Gaussian": "N", "Poisson": "Poi", "Pois": "Poi",
    "Exponential": "Exp", "Expo": "Exp", "Uniform": "U", "Unif": "U", "Geometric": "Geom", "Geo": "Geom", "Bernoulli": "Bern",
}  # fmt: skip
DISTRIBUTIONS |= {name: name for name in DISTRIBUTIONS.values() if len(name) > 1}
"""Name of a distribution before its parameters -> its short name."""

# Numbers

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"


def numbered(text: str, start: int = 0, step: int = 1) -> dict[str, int]:
    """Return the number of each word in a text."""
    return {word: start + step * at for at, word in enumerate(text.split())}


CARDINALS = numbered(_SMALL) | numbered(_TENS, 20, 10)
SCALES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "lakh": 10**5,
    "crore": 10**7, "dozen": 12, "gross": 144, "score": 20,
}  # fmt: skip
SCALES |= {f"{word}s": value for word, value in SCALES.items() if word != "gross"}
ORDINALS = numbered(_ORDINALS, 1)
PARTS = {word: number for word, number in ORDINALS.items() if number > 2}
PARTS |= {"half": 2, "halve": 2, "quarter": 4, "twentieth": 20, "hundredth": 100, "thousandth": 1000}
PARTS |= {f"{word}s": number for word, number in PARTS.items()}
BASES = {word: number for word, number in CARDINALS.items() if 2 <= number <= 36}
BASES |= {"bin": 2, "binary": 2, "oct": 8, "octal": 8, "dec": 10, "decimal": 10, "hex": 16, "hexadecimal": 16}
HAN_NUMBERS = {word: number for number, word in enumerate("零一二三四五六七八九十")}

# Words of sentences

NEUTRAL = word_set(
    "a an the is are was were be of in to for with there it its has have had this that these those he she they we i",
    "answer final value values total number numbers amount result equals equal so thus therefore hence correct option",
    "choice statement only exactly about approximately approx around roughly nearly gives get gets makes make need",
    "needs takes take left more per each different possible distinct ways way solution solutions root point points at",
    "on by from as will can which where when if then all any every some given both answer's problem question part",
    "valid rounded note sf dp fig figs figures s d p f decimal decimals place places significant d.p s.f nearest old",
    "remaining altogether now used cost costs units unit double triple repeated multiplicity roots solves",
    "arrangements arrangement combinations permutations people person items item things thing outcomes total's",
    "years-old of: my our his her their would should must do does did been being set true's x's ago later earlier apart",
    "away long high tall wide deep due ans just here also approximate estimate approaches tends goes",
    "attained occurs when's obtained required desired order lies located",
    "holds every integral limit",
)
"""Words that do not change the value next to them."""
HEADINGS = word_set(
    "probability area length distance speed time height width volume perimeter radius line circle domain range",
    "interval ratio set slope function series sequence sum product term expression equation average mean",
)
"""Words that announce a value."""
LIMITING = word_set("below above beyond within under over almost double")
"""Words that change a number directly after them; the notes mark them with a hyphen."""


MODIFIERS = word_set(
    "not no never non nor neither except excluding excluded outside without least most between false wrong incorrect",
    "undefined none nothing cannot isn't doesn't impossible than fewer less over under unless fails",
    "fail nonexistent unbounded invalid extraneous half twice triple thrice dozen either but else maybe perhaps",
    "possibly otherwise times- plus- of- to-",
) | {f"{word}-" for word in LIMITING}
"""Words that change the value next to them: both answers must have the same ones."""
GROUPS = tuple(
    tuple(map(word_set, group))
    for group in (
        ("forward forwards", "backward backwards"),
        ("clockwise", "counterclockwise anticlockwise counter-clockwise anti-clockwise"),
        ("increase increases increased increasing", "decrease decreases decreased decreasing"),
        ("gain gained profit", "loss lost"), ("absorbed", "released"), ("ad ce", "bc bce"),
        ("above", "below"), ("before", "after"), ("earlier", "later"),
        ("more greater large larger bigger", "less fewer small smaller"),
        ("inward inwards into", "outward outwards out"), ("yes", "no"), ("true", "false"), ("odd", "even"),
        ("real", "complex imaginary"), ("valid", "extraneous invalid"),
        ("max maximum maxima maximizes maximises", "min minimum minima minimizes minimises", "saddle"),
        ("am", "pm"), ("converges convergent", "diverges divergent"), ("positive", "negative"),
        ("first", "second", "third"), ("rational", "irrational"), ("stable", "unstable"),
        ("mean average mu", "median", "mode", "variance", "deviation sigma"),
    )
)  # fmt: skip
"""Words of which one excludes the others."""
_MEASURED = (
    NEUTRAL
    | HEADINGS
    | {word for group in GROUPS for members in group for word in members} - {"negative"}
    | word_set("mass weight force energy power velocity charge current voltage density concentration momentum pressure")
    | word_set("temperature age price difference chance rate acceleration")
)


def takes_argument(terms: Sequence[str]) -> bool:
    """Return whether words that end with `of` name a function of the number: `the reciprocal of`, not `a mass of`."""
    article = next((word for word in reversed(terms) if word in ("a", "an", "the")), "the")
    return terms[-1:] == ["of"] and article == "the" and not _MEASURED.issuperset(terms)


DIRECTIONS = word_set(
    "north south east west up down left right upward downward northeast northwest southeast southwest"
)
SYNONYMS = {
    "eastward": "east", "westward": "west", "northward": "north", "southward": "south", "leftward": "left",
    "rightward": "right", "dne": "undefined", "convergent": "converges", "divergent": "diverges", "infinite": "infinitely many",
    "anticlockwise": "counterclockwise", "upwards": "up", "upward": "up", "downwards": "down",
    "mon": "monday", "tue": "tuesday", "tues": "tuesday", "wed": "wednesday", "thu": "thursday", "thurs": "thursday",
    "ja": "yes", "oui": "yes", "sí": "yes", "是": "yes", "nein": "no", "否": "no", "weds": "wednesday", "nw": "northwest", "ne": "northeast", "sw": "southwest", "se": "southeast",
    "infty": "infinitely many", "fri": "friday", "sat": "saturday", "downward": "down", "kids": "children", "max": "maximum", "min": "minimum",
}  # fmt: skip

_BE = r"(?:(?:is|are|must be|should be|can be|has to be) )"
_ALL = r"(?:(?:the )?set of )?(?:all |every |any |the )?"
_NO = r"(?:(?:there (?:is|are) |has |have )?no (?:(?:real|such|valid|integer|possible) )*"
PHRASES = {
    "<=": rf"{_BE}?(?:less|smaller) than or equal to|{_BE}(?:at most|no (?:more|greater|larger) than)",
    ">=": rf"{_BE}?(?:greater|larger) than or equal to|{_BE}(?:at least|no (?:less|smaller) than)",
    "<": rf"{_BE}?(?:strictly )?(?:less|smaller) than", ">": rf"{_BE}?(?:strictly )?(?:greater|larger) than|{_BE}more than",
    "\\between": rf"(?:{_BE}|lies )?(?:strictly )?between|(?:the )?interval from", "!=": "(?:is |are )?not equal to",
    "\\sim": "is similar to", "\\cong": "is congruent to", "\\parallel": "is parallel to",
    "\\perp": "is perpendicular to", "=": "is equal to", "\\pm": "plus or minus", "/": "out of|in every|divided by", "^": "to the power of", "*": "times the(?= identity)",
    "undefined": "(?:the )?(?:limit )?does not exist|(?:is )?(?:not defined|undefined)",
    "emptyset": rf"{_NO}(?:solutions?|roots?|values?|numbers?|integers?|(?<=such )[nx])(?: exists?)?(?:(?: of [nxyt])?(?: that)? satisf(?:y|ies|ying)\b[a-z ]*)?|(?:there are )?none|(?:the )?empty set)",
    "nonnegative": rf"{_ALL}non ?-? ?negative (?:real numbers|reals|real x)",
    "positive": rf"{_ALL}positive (?:real numbers|reals|real x)", "negative": rf"{_ALL}negative (?:real numbers|reals|real x)",
    "nonzero": rf"{_ALL}non ?-? ?zero (?:real numbers|reals|real x)",
    "R": rf"(?:{_ALL}(?:real numbers|reals|real values(?: of [xyt])?)(?: [xyt])?|(?:all|every|any) real (?:number|[xyt]))"
         "(?: such that| for which)?",
    "Z": "(?:the )?(?:set of (?:all )?|all )integers|(?:the )?integers(?= from)",
    **{kind: rf"(?:the |all )?{kind}s?(?: (?:integers|numbers))?(?= (?:from|between|(?:less|smaller) than))" for kind in ("even", "odd", "prime")},
    "N": "(?:the |all )?positive integers(?= (?:from|between|(?:less|smaller) than))", "H_0": "(?:the )?null hypothesis|the null(?! )",
    "I": "(?:the )?identity matrix(?: i)?", "base": "(?:in )?base", "bmod": "mod(?:ulo)?",
    "sqrt": "(?:the )?square root of", "‰": "per ?mille?", "\\setminus": "except(?: for)?|other than",
    "infinitely many": "infinitely many(?: solutions| values)?|infinite (?:number of )?solutions",
    "otherwise": "otherwise|else(?:where)?",
    "fail to reject": "(?:we )?(?:fail(?:s|ed)? to|cannot|can not|don't|do not|did not|should not) reject"
                      "|(?:there is |we have |do not have )?(?:not enough|not sufficient|insufficient|enough(?<=not have enough)) evidence to reject",
}  # fmt: skip
"""Sign, command of a set or an operation, or word -> the phrases of English that mean it, as a regular expression."""

_KNOWN = word_set(
    "apples apple eggs egg boys girls red blue green yes no true false none even odd prime infinite undefined dne",
    "north south east west left right up down inches feet foot inch miles mile hours hour minutes minute seconds",
    "days day weeks week months month years year dollars dollar cents cent meters meter grams gram liters liter",
    "kg km cm mm mg ml kw kwh mph kph kmh rad deg mol atm psi ft lb lbs oz yd gal hz khz mhz ghz kpa mpa gpa sq",
    "percent pct base mod remainder rem where for all not any an the is are of in to be by at am pm noon midnight",
    "negative minus plus positive half quarter circle ellipse parabola line point increase decrease gain loss profit",
    "monday tuesday wednesday thursday friday saturday sunday january february march april may june july august",
    "september october november december degrees degree celsius fahrenheit kelvin radians radian newtons joules watts",
    "volts amps ohms tesla pascals hertz moles coulombs farads square cubic squared cubed only about around cube",
    "he she it they has have left more less than out max min if with and or on as but usd eur hr hrs sec secs min mins",
    "tues thurs weds dogs cats dog cat cow cows pen pens cup cups way ways old new one two both day yr yrs tons ton each",
    "off reject ja nein oui",
)
KNOWN_WORDS = (
    _KNOWN
    | frozenset(CARDINALS)
    | frozenset(name.lower() for name in DISTRIBUTIONS if len(name) > 4)
    | frozenset(SCALES)
    | frozenset(ORDINALS)
    | frozenset(PARTS)
    | NEUTRAL.difference({"s", "d", "p", "f", "i", "a", "sf", "dp"})
    | MODIFIERS
    | frozenset(
        word for group in GROUPS for members in group for word in members if word not in ("ad", "ce", "bc", "bce")
    )
    | DIRECTIONS
    | frozenset(word for phrase in PHRASES.values() for word in re.findall("[a-z]{2,}", phrase))
    | word_set("multiple multiples power powers integers integer noon midnight span")
)
"""Runs of letters that are words without a font command."""
_PROSE = re.compile(r"[A-Z]?[a-z]{4,}|[A-Z][a-z]{2,}")
_VOWELS = frozenset("aeiouy")


def is_prose(run: str, *, spaced: bool) -> bool:
    """Return whether a run of letters that no table has is a word of a sentence, and no product of letters."""
    lower = run.lower()
    if _PROSE.fullmatch(run):
        return bool(_VOWELS & set(lower[1:])) and len(set(lower)) > 2 and (spaced or len(run) > 4)
    return spaced and len(run) == 3 and run.islower() and lower[1] in "aeiou" and lower[0] not in _VOWELS
