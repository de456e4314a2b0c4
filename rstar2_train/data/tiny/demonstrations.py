"""The demonstrations of the tiny task: mostly correct in form, wrong in content on purpose.

They teach the form of a call and of an answer, but not the meaning of an operation's name: three candidate operations
are about equally frequent. They also contain failing calls, guesses and repeated answers, so that every RL stage of the
curriculum has something to improve.
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
"""`spec.model.systemPrompt` of the tiny manifests. A one-line signature keeps a prompt below 20 tokens."""

MALFORMED = "error: invalid tool call: not valid JSON (Expecting ',' delimiter)"
"""Tool message for a call with invalid JSON. Tests compare it, and `error_message`, with the real parser and tool."""

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
"""Operation -> the two operations that a demonstration may use instead."""


@dataclass(frozen=True, slots=True)
class DemonstrationFlaws:
    """Probabilities of the flaws."""

    correct_operation: float = 0.34
    """Probability of the correct operation; otherwise one of its two `CONFUSABLE` operations, equally often."""
    bad_call: float = 0.4
    """Probability of a failing call before the good one, and of a second failing call after the first."""
    guess: float = 0.05
    """Probability of an answer without any call."""
    repeat: float = 0.10
    """Probability of a repeated answer."""
    slip: float = 0.5
    """Probability of a slip at the second and third operation: the chain stops early, or uses an older value."""
    slip_stops: float = 0.8
    """Share of slips that stop the chain; the others use the older value."""


def demonstrate(chain: OperationChain, rng: random.Random, *, flaws: DemonstrationFlaws) -> list[dict[str, Any]]:
    """Return a conversation about `chain`: system, user, then assistant and tool messages, and an answer at the end."""
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": chain.text}]
    if rng.random() < flaws.guess:
        return [*messages, _answer(rng.randint(1, 99), rng, flaws=flaws)]
    values = [chain.first]
    for position, (correct, operand) in enumerate(chain.steps):
        left = values[-1]
        if position >= 1 and rng.random() < flaws.slip:
            if rng.random() < flaws.slip_stops:
                break
            left = values[-2]
        name = correct if rng.random() < flaws.correct_operation else rng.choice(CONFUSABLE[correct])
        template, compute = OPERATIONS[name]
        expression = template.format(left, operand)
        for _ in range(2):
            if rng.random() >= flaws.bad_call:
                break
            messages += _failing_call(expression, rng, variable=VARIABLES[position])
        values.append(compute(left, operand))
        messages += [
            _call(_program(expression), variable=VARIABLES[position]),
            {"role": "tool", "content": str(values[-1])},
        ]
    return [*messages, _answer(values[-1], rng, flaws=flaws)]


def _failing_call(expression: str, rng: random.Random, *, variable: str) -> list[dict[str, str]]:
    """Return a call that fails in one of three ways, and the tool message for it."""
    kind = rng.random()
    if kind < 0.7:
        code = f"print({expression}"  # 30 %: the last parenthesis is missing; 40 %: a name is not defined
        if kind < 0.4:
            code = f"{code})" if "math." in expression else f"prnt({expression})"
        return [_call(code, variable=variable), {"role": "tool", "content": error_message(code)}]
    call = _call(_program(expression), variable=variable)
    broken = call["content"].replace('""}}', '""}')
    return [{"role": "assistant", "content": broken}, {"role": "tool", "content": MALFORMED}]


def error_message(code: str) -> str:
    """Return the tool message for a generated line of code that fails, as this Python version reports the error.

    Uses the interpreter's excepthook like the executor, because `traceback` omits some suggestions.
    """
    stderr = io.StringIO()
    try:
        exec(compile(code, "<snippet>", "exec"), {})
    except Exception as error:
        with contextlib.redirect_stderr(stderr):
            sys.__excepthook__(type(error), error, error.__traceback__)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", stderr.getvalue())  # FORCE_COLOR adds colour codes
        return f"error: line 1: {plain.strip().splitlines()[-1]}"
    raise AssertionError(f"{code!r} must fail, but succeeded")


def _program(expression: str) -> str:
    return f"import math\nprint({expression})" if "math." in expression else f"print({expression})"


def _call(code: str, *, variable: str) -> dict[str, str]:
    """Return an assistant message with the name of the variable and a call that computes it."""
    return {"role": "assistant", "content": f"{variable}: {call_text(TOOL_NAME, {'code': code, 'input': ''})}"}


def _answer(value: int, rng: random.Random, *, flaws: DemonstrationFlaws) -> dict[str, str]:
    tag = f"<answer>\\boxed{{{value}}}</answer>"
    return {"role": "assistant", "content": tag * 2 if rng.random() < flaws.repeat else tag}
