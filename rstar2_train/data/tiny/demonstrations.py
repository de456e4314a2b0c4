"""The demonstrations of the tiny task: right in form often enough, wrong in content on purpose.

They teach how to call the tool and how to answer, not which operation a word stands for: of three candidates each is
shown about equally often. They also hold what a first policy does badly, such as calls that fail, guesses and
repeated answers, so that reinforcement learning has something to find out at every stage of the curriculum.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import sys
from dataclasses import dataclass
from typing import Any

from rstar2_train.data.tiny.tasks import OPERATIONS, VARIABLES, OperationChain
from rstar2_train.tools.schema import TOOL_NAME, call_text

SYSTEM_PROMPT = f"Tool: {TOOL_NAME}"
"""`spec.model.systemPrompt` of the tiny manifests: the signature in one line keeps a prompt below 20 tokens."""

MALFORMED = "error: invalid tool call: not valid JSON (Expecting ',' delimiter)"
"""What the model is shown for its broken JSON; tests hold it, and `complaint`, against the real parser and tool."""


CONFUSABLE: dict[str, tuple[str, str]] = {
    "sum": ("difference", "product"),
    "difference": ("sum", "quotient"),
    "product": ("sum", "remainder"),
    "remainder": ("quotient", "difference"),
    "quotient": ("remainder", "product"),
    "gcd": ("lcm", "minimum"),
    "lcm": ("gcd", "maximum"),
    "maximum": ("minimum", "sum"),
    "minimum": ("maximum", "gcd"),
}
"""The two operations that a demonstration may use in place of the right one."""


@dataclass(frozen=True, slots=True)
class DemonstrationFlaws:
    """How imperfect the demonstrations are. Probabilities."""

    right: float = 0.34
    """An operation is the right one; else one of its two confusables, each as often."""
    bad_call: float = 0.4
    """A call that fails comes before the good one; a second time with the same probability."""
    guess: float = 0.05
    """The answer is guessed without any call."""
    repeat: float = 0.10
    """The answer is written twice."""
    slip: float = 0.5
    """At the second and at the third operation: the chain stops too early, or an older value is used."""
    slip_stops: float = 0.8
    """Share of slips that stop; the others use the older value."""


def demonstrate(chain: OperationChain, rng: random.Random, *, flaws: DemonstrationFlaws) -> list[dict[str, Any]]:
    """One conversation about `chain`: system, user, then assistant and tool turns, ending with an answer."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": chain.text}]
    if rng.random() < flaws.guess:
        return [*messages, _answer(rng.randint(1, 99), rng, flaws=flaws)]
    values = [chain.first]
    for position, (right, operand) in enumerate(chain.steps):
        left = values[-1]
        if position >= 1 and rng.random() < flaws.slip:
            if rng.random() < flaws.slip_stops:
                break
            left = values[-2]
        name = right if rng.random() < flaws.right else rng.choice(CONFUSABLE[right])
        expression, compute = OPERATIONS[name]
        written = expression.format(left, operand)
        for _ in range(2):
            if rng.random() >= flaws.bad_call:
                break
            messages += _failing(written, rng, variable=VARIABLES[position])
        values.append(compute(left, operand))
        messages += [
            _call(_program(written), variable=VARIABLES[position]),
            {"role": "tool", "content": str(values[-1])},
        ]
    return [*messages, _answer(values[-1], rng, flaws=flaws)]


def _failing(expression: str, rng: random.Random, *, variable: str) -> list[dict[str, str]]:
    """A call that fails, in one of three ways, and what the tool says to it."""
    kind = rng.random()
    if kind < 0.7:
        code = f"print({expression}"  # 30 %: the last parenthesis is missing; 40 %: a name is not defined
        if kind < 0.4:
            code = f"{code})" if "math." in expression else f"prnt({expression})"
        return [_call(code, variable=variable), {"role": "tool", "content": complaint(code)}]
    call = _call(_program(expression), variable=variable)
    broken = call["content"].replace('""}}', '""}')
    return [{"role": "assistant", "content": broken}, {"role": "tool", "content": MALFORMED}]


def complaint(code: str) -> str:
    """What the model is shown for one of our own lines that fails: in the words of this very Python version.

    By the interpreter's own hook, as in the executor: `traceback` leaves out some of its suggestions.
    """
    shown = io.StringIO()
    try:
        exec(compile(code, "<snippet>", "exec"), {})
    except Exception as error:
        with contextlib.redirect_stderr(shown):
            sys.__excepthook__(type(error), error, error.__traceback__)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())  # FORCE_COLOR in the environment colours it
        return f"error: line 1: {plain.strip().splitlines()[-1]}"
    raise AssertionError(f"{code!r} was meant to fail")


def _program(expression: str) -> str:
    return f"import math\nprint({expression})" if "math." in expression else f"print({expression})"


def _call(code: str, *, variable: str) -> dict[str, str]:
    """A turn that says which variable it is about to find, and calls the tool for it."""
    return {"role": "assistant", "content": f"{variable}: {call_text(TOOL_NAME, {'code': code, 'input': ''})}"}


def _answer(value: int, rng: random.Random, *, flaws: DemonstrationFlaws) -> dict[str, str]:
    tag = f"<answer>\\boxed{{{value}}}</answer>"
    return {"role": "assistant", "content": tag * 2 if rng.random() < flaws.repeat else tag}
