"""Properties of every verdict: what models write around an answer neither loses nor gains it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from rstar2_verify import verify
from rstar2_verify.extract import final_answer

CASES = Path(__file__).with_name("cases")
STEP = 60
"""Every n-th line of each case file is tried in each wrapper."""
WRAPPERS = [
    r"\boxed{%s}", "$%s$", "$$%s$$", r"\[ \boxed{%s} \]", r"So the final answer is $\boxed{%s}$.", "Answer: %s",
    "**Final Answer:** $%s$", "**Answer:** %s", "**Answer: %s**", "**%s**", r"The answer is \(%s\).", "#### %s",
    "The answer is **%s**.", "### Final Answer\n\n%s", "x = 3.\n\n**Final Answer**\n\n\\[\n%s\n\\]",
    "We compute step by step.\nHence $a=1$.\n\n$$\\boxed{%s}$$", r"Thus, $\boxed{%s}$ is the answer.",
    "Final Answer: The final answer is $%s$. I hope it is correct.",
]  # fmt: skip


@pytest.mark.parametrize("path", sorted(CASES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_wrappers_do_not_change_the_verdict(path: Path) -> None:
    """Each answer has the verdict of the bare answer in each wrapper."""
    changed = []
    for line in path.read_text(encoding="utf-8").splitlines()[::STEP]:
        case = json.loads(line)
        bare = final_answer(case["answer"])
        outcome = verify(case["known"], bare).outcome
        for wrapper in WRAPPERS:
            if any(mark in bare and mark in wrapper for mark in ("$", "**")):
                continue  # a sign of money does not delimit mathematics, and bold text has no bold part
            wrapped = wrapper.replace("%s", bare)
            if verify(case["known"], wrapped).outcome != outcome:
                changed.append((case["known"], wrapped, outcome))
    assert changed == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"$\boxed{5}$ cm", "5 cm"),
        (r"$\boxed{5}\text{ m/s}$", r"5 \text{ m/s}"),
        (r"$x = -\boxed{5}$", "-{5}"),
        (r"$x=\boxed{2}$ or $x=\boxed{3}$", "2 or 3"),
        (r"First $\boxed{2}$. The sum is then $\boxed{3}$.", "3"),
        (r"\boxed{\boxed{7}}", "7"),
        ("The answer is not 5.", "not 5"),
        ("5 is not the answer", "5 is not the answer"),
        (r"**Answer:** \$18", r"\$18"),
        (r"\text{Answer: C}", "C"),
    ],
)
def test_final_answer_is_the_last_box_or_follows_the_marker(text: str, answer: str) -> None:
    """Units, signs and boxes next to the last box belong to the answer."""
    assert final_answer(text) == answer


@pytest.mark.parametrize("part", [r"\boxed{", "answer ", "answer: ", ". ", " ", "**", "$", r"\boxed{1},", "I hope "])
def test_final_answer_is_found_in_linear_time(part: str) -> None:
    """A long text without an answer takes less than a second."""
    start = time.process_time()
    final_answer("x" + part * (100_000 // len(part)) + "x")
    assert time.process_time() - start < 1
