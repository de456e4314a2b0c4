"""The word problems: reproducible by seed, exact answers, four families held out, programs that print their output."""

from __future__ import annotations

import contextlib
import io
import random
from collections import Counter
from pathlib import Path

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.data.demonstrations import read_demonstrations
from rstar2_train.data.problems import read_problems
from rstar2_train.data.word_problems import SYSTEM_PROMPT, write_word_problems
from rstar2_train.data.word_problems.families import FAMILIES, Family, draw_problem
from rstar2_train.tools.parser import parse_calls

EXAMPLE = Path(__file__).parents[3] / "examples" / "smollm2.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    write_word_problems(folder, seed=5)
    return folder


def test_same_seed_writes_same_bytes(folder: Path, tmp_path: Path) -> None:
    """The seed determines every byte."""
    for name, seed in (("same", 5), ("other", 6)):
        (tmp_path / name).mkdir()
        write_word_problems(tmp_path / name, seed=seed)
    for file in ("sft.jsonl", "rl.jsonl", "report.jsonl"):
        text = (folder / file).read_bytes()
        assert (tmp_path / "same" / file).read_bytes() == text != (tmp_path / "other" / file).read_bytes()


def test_files_share_no_problem_and_hold_families_out(folder: Path) -> None:
    """No text is in two files. SFT sees five families, RL twelve; the report has all sixteen, equally often."""
    report, rl = (list(read_problems(folder / f"{name}.jsonl")) for name in ("report", "rl"))
    demonstrated = [row.messages[1]["content"] for row in read_demonstrations(folder / "sft.jsonl")]
    texts = [problem.problem for problem in (*report, *rl)] + demonstrated
    assert [text for text, count in Counter(texts).items() if count > 1] == []
    assert Counter(problem.slice for problem in report) == {"seen": 60, "rl-only": 84, "held-out": 48}
    assert {problem.slice for problem in rl} == {"seen", "rl-only"}
    assert len({problem.id.rpartition("-")[0] for problem in report[:16]}) == 16


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_answers_are_exact_and_texts_have_all_numbers(family: Family) -> None:
    """Each answer is a positive integer without rounding, and each text has every number of the expression."""
    for seed in range(200):
        problem = draw_problem(family, random.Random(seed))
        exact = eval(problem.expression.replace("//", "/"))
        assert problem.answer == exact > 0
        assert all(str(number) in problem.text for number in problem.numbers)
        assert not set("{}") & set(problem.text)


def test_demonstrations_have_the_output_of_their_program(folder: Path) -> None:
    """Each call prints its tool message and the answer."""
    for row in read_demonstrations(folder / "sft.jsonl"):
        _, _, call_turn, output, answer = row.messages
        (call,) = parse_calls(call_turn["content"], max_calls=8)
        with contextlib.redirect_stdout(printed := io.StringIO()):
            exec(compile(call.code, "<snippet>", "exec"), {})
        assert output == {"role": "tool", "content": printed.getvalue().strip()}
        assert answer["content"] == f"<answer>\\boxed{{{output['content']}}}</answer>"


def test_manifest_uses_system_prompt_of_demonstrations() -> None:
    """The manifest has the system prompt of the demonstrations."""
    model = AgenticRLJob.model_validate(read_manifest(EXAMPLE)).spec.model
    assert (model.system_prompt, model.prompt_prefix) == (SYSTEM_PROMPT, "")
