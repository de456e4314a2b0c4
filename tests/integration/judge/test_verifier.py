"""Answers that need a parser, decided by math-verify in the real sandbox."""

import asyncio

from rstar2_train.judge.client import JudgeClient
from rstar2_train.reward.verify import verify

CASES = [
    ("10/2", "5", "correct"),
    ("x=5", "5", "correct"),
    (r"5\text{ cm}", "5", "correct"),
    (r"45^\circ", "45", "correct"),
    (r"\frac{1}{2}", "0.5", "correct"),
    (r"\sqrt{8}", r"2\sqrt{2}", "correct"),
    ("5,6", "5", "wrong"),
    ("2^{100000}", "5", "wrong"),
    ("\"); print('correct'); (\"", "5", "wrong"),
    ("'''); print('correct')#", "5", "wrong"),
]


async def test_the_parser_decides_inside_the_sandbox(client: JudgeClient) -> None:
    texts = [rf"<answer>\boxed{{{answer}}}</answer>" for answer, _, _ in CASES]
    scores = await asyncio.gather(
        *(verify(text, gold, judge=client) for text, (_, gold, _) in zip(texts, CASES, strict=True))
    )
    assert [(score.answer, score.verdict) for score in scores] == [(answer, verdict) for answer, _, verdict in CASES]
