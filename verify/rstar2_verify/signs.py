"""Tables of the lexer: commands of LaTeX and characters of Unicode -> signs and names. Standard library only."""

from __future__ import annotations

from .lexicon import word_set

VARIANTS = {
    "varepsilon": "epsilon", "vartheta": "theta", "varphi": "phi", "varrho": "rho", "varsigma": "sigma", "dfrac": "frac",
    "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "Bbb": "mathbb", "fbox": "boxed", "lnot": "neg",
    "measuredangle": "angle", "overline": "bar", "overrightarrow": "vec", "widehat": "hat", "widetilde": "tilde",
}  # fmt: skip
SKIPPED = word_set(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle",
    "scriptstyle limits nolimits therefore because mathstrut strut rm bf it hfill tiny small large Large LARGE huge",
    "Huge normalsize checkmark ! ( ) [ ] $ nonumber notag",
)
SPACES = {",": 2, ";": 2, ":": 2, " ": 2, "quad": 2, "qquad": 2, "thinspace": 2, "enspace": 2, "hspace": 2, "~": 1}
FONTS = word_set(
    "mathrm mathbf mathit mathsf mathtt mathnormal boldsymbol bm pmb operatorname bold",
)
TEXTS = word_set(
    "text textbf textit textrm textsf textnormal mbox hbox texttt ce textup",
)
SIGNS = {
    "cdot": "*", "times": "\\times", "ast": "*", "bullet": "*", "div": "/", "slash": "/", "pm": "\\pm", "mp": "\\mp",
    "lbrace": "\\{", "rbrace": "\\}", "{": "\\{", "}": "\\}", "lbrack": "[", "rbrack": "]",
    "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=",
    "lt": "<", "gt": ">", "ne": "!=", "neq": "!=", "equiv": "\\equiv", "approx": "~", "simeq": "~", "cong": "\\cong",
    "sim": "\\sim", "in": "\\in", "notin": "\\notin", "to": "\\to", "rightarrow": "\\to", "longrightarrow": "\\to",
    "Rightarrow": "\\to", "implies": "\\to", "mapsto": "\\to", "iff": "\\iff", "Leftrightarrow": "\\iff", "leftrightarrow": "\\iff",
    "Longleftrightarrow": "\\iff", "longleftrightarrow": "\\iff", "Longrightarrow": "\\to", "longmapsto": "\\to",
    "rightleftharpoons": "\\rightleftharpoons", "subset": "\\subset", "subseteq": "\\subseteq", "parallel": "\\parallel",
    "perp": "\\perp", "propto": "\\propto", "cup": "\\cup", "bigcup": "\\cup", "cap": "\\cap", "bigcap": "\\cap",
    "setminus": "\\setminus", "backslash": "\\setminus", "smallsetminus": "\\setminus", "lor": "or", "vee": "or",
    "land": "and", "wedge": "and", "vert": "|", "lvert": "|", "rvert": "|", "mid": "|", "Vert": "|", "lVert": "|",
    "rVert": "|", "|": "|", "colon": ":", "%": "%", "\\": "\\\\", "degree": "\\degree", "circ": "\\circ",
    "prime": "'", "ldots": "...", "dots": "...", "cdots": "...", "dotsc": "...", "dotsb": "...", "vdots": "...",
    "langle": "\\langle", "rangle": "\\rangle", "&": "and", "#": "#", "colonequals": "=", "_": "_", "triangleq": "=",
    "oplus": "\\oplus", "otimes": "\\otimes", "gets": "=", "deg": "\\degree",
}  # fmt: skip
UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "\\times", "·": "*", "⋅": "*", "∙": "*", "•": "*", "÷": "/",
    "∕": "/", "⁄": "/", "≤": "<=", "≥": ">=", "⩽": "<=", "⩾": ">=", "≠": "!=", "≈": "~", "≃": "~", "≅": "\\cong",
    "∼": "\\sim", "∈": "\\in", "∉": "\\notin", "∪": "\\cup", "∩": "\\cap", "±": "\\pm", "∓": "\\mp", "°": "\\degree",
    "˚": "\\degree", "º": "\\degree", "…": "...", "→": "\\to", "⟶": "\\to", "⇒": "\\to", "↦": "\\to", "⇌":
    "\\rightleftharpoons", "′": "'", "’": "'", "″": "''", "∖": "\\setminus", "≡": "\\equiv", "∥": "\\parallel",
    "⊥": "\\perp", "⟨": "\\langle", "⟩": "\\rangle", "∣": "|", "│": "|", "∧": "and", "∨": "or", "⊂": "\\subset", "⊆":
    "\\subseteq", "ˆ": "^", "“": '"', "”": '"', "，": ",", "；": ";", "：": ":", "（": "(", "）": ")", "、": ",",
    "％": "%", "∝": "\\propto", "⇔": "\\iff", "↔": "\\iff", "⟺": "\\iff", "⟹": "\\to", "＝": "=", "＋": "+", "⊕": "\\oplus", "⊗": "\\otimes",
}  # fmt: skip
UNICODE_COMMANDS = {
    "π": "pi", "∞": "infty", "∅": "emptyset", "√": "sqrt", "∛": "cbrt", "∜": "root4", "∠": "angle", "△": "triangle",
    "∫": "int", "∑": "sum", "∏": "prod", "∂": "partial", "∇": "nabla", "ℏ": "hbar", "⌊": "lfloor", "⌋": "rfloor",
    "⌈": "lceil", "⌉": "rceil", "ℝ": "R", "ℤ": "Z", "ℕ": "N", "ℚ": "Q", "ℂ": "C", "Ω": "Omega", "ℓ": "ell", "∀": "forall",
    **{letter: name for letter, name in zip("αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΣΦΨΩ", ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega"], strict=True)},
    "µ": "mu", "¬": "neg", "ⅈ": "imath", "ϕ": "phi", "ϵ": "epsilon",
}  # fmt: skip
SUPERSCRIPTS = {**dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣʸᵏᵗᵃᵇᵐ", "0123456789+-()nixyktabm", strict=True))}
SUBSCRIPTS = {**dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₐₑₓₙᵢⱼₖₘₜₙ", "0123456789+-()aexnijkmtn", strict=True))}
