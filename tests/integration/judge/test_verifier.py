"""Answers that the parser compares in the real sandbox, and hostile answers, which are contained there."""

import asyncio

import pytest

from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.rewards.verify import verify

CASES = [
    ("10/2", "5", "correct"),
    ("x=5", "5", "correct"),
    ("5.0", "5", "correct"),
    (r"5\text{ cm}", "5", "correct"),
    (r"45^\circ", "45", "correct"),
    ("1,234", "1234", "correct"),
    ("33", "033", "correct"),
    ("1/2", "0.5", "correct"),
    (r"\frac{1}{2}", "0.5", "correct"),
    (r"\sqrt{8}", r"2\sqrt{2}", "correct"),
    (r"3 < x \le 4", "(3,4]", "correct"),
    (r"(2+i)(3-i)", "7+i", "correct"),
    ("5,6", "5", "wrong"),
    ("2k", "2", "wrong"),
    ("(1,2]", "(1,2)", "wrong"),
    ("\"); print('correct'); (\"", "5", "wrong"),
    ("'''); print('correct')#", "5", "wrong"),
]

HOSTILE = {
    "long number": "2^{100000}",
    "power": "2^{2^{100}}",
    "tower": "9^{9^{9^{9}}}",
    "power in one step": "123456789^{98765432}",
    "factorial": "(10^{10})!",
    "exponent": "10^{-10^{9}}+1e400000000",
    "fractions": r"\frac{1}{1+" * 60 + "x" + "}" * 60,
    "parentheses": "(" * 500 + "5" + ")" * 500,
    "roots": r"\sqrt{" * 100 + "2" + "}" * 100,
    "sum": r"\sum_{k=1}^{10^{12}} \frac{1}{k^3+1}",
    "code": "__import__('os').system('echo correct')",
    "file": "exec(open('/etc/passwd').read())",
    "quotes": "\"\"\"\\'\\\"''');print('correct')",
    "nothing": r"\frac{5}{0}",
    "zero byte": "5+\0",
    "surrogate": "5+\ud800",
    "marks": "5+" + "\u0301" * 300,
    "direction": "\u202e5+0\u202c",
    "pictures": "\N{GRINNING FACE}" * 300,
    "other digits": "\N{ARABIC-INDIC DIGIT FIVE}",
}


def boxed(answer: str) -> str:
    return rf"<answer>\boxed{{{answer}}}</answer>"


async def test_verify_parses_answers_in_the_sandbox(client: JudgeClient) -> None:
    """Equivalent answers are correct, and others are wrong."""
    scores = await asyncio.gather(*(verify(boxed(answer), gold, judge=client) for answer, gold, _ in CASES))
    assert [(score.answer, score.verdict) for score in scores] == [(answer, verdict) for answer, _, verdict in CASES]


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
async def test_verify_hostile_answer_gets_no_reward(client: JudgeClient, answer: str) -> None:
    """The answer is wrong or undecided, and the next one is judged correctly."""
    hostile = await verify(boxed(answer), "7", judge=client)
    assert hostile.verdict in ("wrong", "undecided") and hostile.score == 0
    assert (await verify(boxed("14/2"), "7", judge=client)).verdict == "correct"
