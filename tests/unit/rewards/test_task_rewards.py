"""Rewards of a job: comparisons, checkers and tests, and what counts as a fault of the checker."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.api.tasks import RewardSpec
from rstar2_train.judge.types import CallResult
from rstar2_train.rewards.task_rewards import Response, TaskRewards
from rstar2_train.rewards.verdict import Grade


class FakeJudge:
    """Returns the given results in order, the last one again and again; records the inputs."""

    def __init__(self, *results: CallResult) -> None:
        self.results = list(results)
        self.inputs: list[str] = []
        self.codes: list[str] = []
        self.scripts: list[bool] = []
        self.limits: list[JudgeLimits | None] = []

    async def run(
        self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None, script: bool = False
    ) -> CallResult:
        self.inputs.append(stdin)
        self.codes.append(code)
        self.scripts.append(script)
        self.limits.append(limits)
        return self.results.pop(0) if len(self.results) > 1 else self.results[0]


def scored(score: object, reason: str = "") -> CallResult:
    return CallResult("ok", stdout=json.dumps({"score": score, "reason": reason}))


async def grade(spec: RewardSpec, text: str, judge: FakeJudge | None = None, **row: Any) -> Grade:
    response = Response(model_text=text, last_turn=text, row={"id": "p", "answer": "", **row})
    return await TaskRewards([spec]).grade(response, "", judge=judge or FakeJudge(CallResult("internal")))


@pytest.mark.parametrize(
    ("kind", "answer", "gold", "correct"),
    [
        ("Exact", r"\boxed{new  york}", "new york", True),
        ("Exact", "new york", "new york", True),
        ("Exact", r"\boxed{New York}", "new york", False),
        ("Choice", r"\boxed{\text{(B)}}", "B", True),
        ("Choice", r"\boxed{b. Paris}", "B", True),
        ("Choice", r"\boxed{Bern}", "B", False),
        ("Choice", r"\boxed{A or B}", "A", False),
        ("Choice", r"\boxed{A car moves}", "A", False),
        ("Choice", "A bird in the hand", "A", False),
        ("Choice", "The answer is B", "B", True),
        ("Choice", "**B**", "B", True),
        ("Numeric", r"\boxed{1.0\text{ km}}", "1000 m", True),
        ("Numeric", r"\boxed{a lot}", "1000 m", False),
        ("Numeric", r"\boxed{\frac{1}{2}}", "0.5", True),
        ("Numeric", "1.0 x 10^3", "1000", True),
        ("Numeric", "x = 5", "5", True),
        ("Numeric", "about 5", "5", True),
        ("Numeric", "0.5", "50%", True),
        ("Numeric", "5 kgs", "5 kg", True),
        ("Numeric", "1/2", "2", False),
    ],
)
async def test_grade_compares_by_type(kind: Any, answer: str, gold: str, correct: bool) -> None:
    """The type of the reward decides which answers are equal."""
    result = await grade(RewardSpec(name="r", type=kind), f"<answer>{answer}</answer>", answer=gold)
    assert (result.verdict, result.score) == (("correct", 1.0) if correct else ("wrong", 0.0))


async def test_grade_without_answer_block_has_no_answer() -> None:
    """A response without an answer block is not compared."""
    result = await grade(RewardSpec(name="r", type="Exact"), "new york", answer="new york")
    assert (result.verdict, result.score, result.answer) == ("no_answer", 0.0, None)


@pytest.fixture
def checker(tmp_path: Path) -> RewardSpec:
    """Return a reward of type Program whose responses are correct from 0.5."""
    (tmp_path / "checker.py").write_text("def score(row, answer, transcript):\n    return 1.0\n")
    return RewardSpec(name="sql", type="Program", source=str(tmp_path / "checker.py"), correct_from=0.5)


@pytest.mark.parametrize(("score", "verdict"), [(0.5, "correct"), (1, "correct"), (0.4, "wrong"), (0, "wrong")])
async def test_grade_checker_score_and_threshold(checker: RewardSpec, score: float, verdict: str) -> None:
    """The checker gets row, answer and transcript; its score is the reward, the threshold decides the verdict."""
    judge = FakeJudge(scored(score, "because"))
    result = await grade(checker, "<answer>x</answer>", judge, answer="gold", data={"hidden": 1})
    assert (result.verdict, result.score, result.correct_from, result.reason) == (verdict, score, 0.5, "because")
    arguments = json.loads(judge.inputs[0])["arguments"]
    assert (arguments["row"]["answer"], arguments["row"]["data"], arguments["answer"]) == ("gold", {"hidden": 1}, "x")
    assert arguments["transcript"] == {"text": "<answer>x</answer>", "calls": []}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (CallResult("error", stderr="KeyError: 'x'\n"), "status error: KeyError: 'x'"),
        (CallResult("timeout"), "status timeout"),
        (CallResult("memory"), "status memory"),
        (CallResult("ok", stdout="nothing"), "printed no score"),
        (CallResult("ok", stdout="[1]"), "printed no score"),
        (scored(1.5), "a score must be in [0, 1]"),
        (CallResult("ok", stdout='{"score": NaN, "reason": ""}'), "a score must be in [0, 1]"),
    ],
)
async def test_grade_faulty_checker_is_excluded(checker: RewardSpec, result: CallResult, reason: str) -> None:
    """A checker that crashes, exceeds a limit or returns no score is tried twice, and is never a wrong answer."""
    judge = FakeJudge(result)
    graded = await grade(checker, "<answer>x</answer>", judge)
    assert (graded.verdict, len(judge.inputs)) == ("internal", 2) and reason in graded.reason
    assert (await grade(checker, "<answer>x</answer>", FakeJudge(result, scored(1)))).verdict == "correct"


async def test_grade_tests_compares_outputs_outside() -> None:
    """The score is the share of passed tests. The program's own exit status and claims play no part."""
    tests = [{"input": "2", "output": "4\n"}, {"input": "3", "output": "9"}]
    spec = RewardSpec(name="code", type="Tests", correct_from=1.0)
    text = "<answer>\n```python\nprint(int(input())**2)\n```\n</answer>"
    judge = FakeJudge(CallResult("ok", stdout="4\n"), CallResult("ok", stdout="all tests passed"))
    half = await grade(spec, text, judge, data={"tests": tests})
    assert (half.verdict, half.score, half.reason) == ("wrong", 0.5, "test 2: wrong output")
    assert judge.inputs == ["2", "3"]
    timeout = await grade(spec, text, FakeJudge(CallResult("timeout")), data={"tests": tests})
    assert (timeout.verdict, timeout.score) == ("wrong", 0.0)


async def test_grade_tests_keeps_the_whole_expected_output() -> None:
    """A program may print as much as its test expects, and white space besides: else no program would be correct."""
    spec = RewardSpec(name="code", type="Tests", timeout_seconds=9)
    lines = "".join(f"{number}\n" for number in range(30_000))
    for output, verdict in (
        (lines, "correct"),
        (lines.replace("\n", "  \r\n"), "correct"),
        (lines.replace("29999", "29998"), "wrong"),
        (lines + "1", "wrong"),
        (lines[:-7], "wrong"),
    ):
        judge = FakeJudge(CallResult("ok", stdout=output))
        tests = [{"input": "", "output": lines}]
        graded = await grade(spec, "<answer>x</answer>", judge, data={"tests": tests})
        assert graded.verdict == verdict
        assert judge.limits == [JudgeLimits(wall_seconds=9, output_bytes=2 * len(lines))]


def test_check_row_rejects_tests_above_the_limits() -> None:
    """A program cannot read such an input, or write such an output: each answer would be wrong."""
    rewards = TaskRewards([RewardSpec(name="code", type="Tests")])
    limit = "é" * (2 << 20)
    rewards.check_row("", "-", json.dumps({"tests": [{"input": limit, "output": limit}]}))
    for name, test in (
        ("input", {"input": limit + "x", "output": ""}),
        ("output", {"input": "", "output": limit + "x"}),
    ):
        data = json.dumps({"tests": [{"input": "", "output": "1"}, test]})
        with pytest.raises(ValueError, match=f"the {name} of test 2 has 4,194,305 bytes; the limit is 4,194,304"):
            rewards.check_row("", "-", data)


ONE_TEST = '{"tests": [{"input": "", "output": "1", %s}]}'
MORE_TESTS = '{"tests": [{"input": "", "output": "1"}], "%s": ["x"]}'
FUNCTION_TESTS = '{"tests": [{"input": "[1]", "output": "1"}], "fn_name": "add"}'


def test_check_row_rejects_rows_that_cannot_be_graded() -> None:
    """A row with an unknown reward, or with an answer that its reward cannot read, is an error of the data."""
    rewards = TaskRewards(
        [RewardSpec(name=kind.lower(), type=kind) for kind in ("Exact", "Numeric", "Choice", "Tests")]
    )
    rewards.check_row("", "x", "")
    rewards.check_row("tests", "-", '{"tests": [{"input": "", "output": "1"}], "fn_name": null}')
    rewards.check_row("tests", "-", '{"tests": [{"input": "", "output": "1"}], "input_mode": "stdio"}')
    for kind in ('"testtype": "stdin"', '"type": "stdin_stdout"', '"timeout": null'):
        rewards.check_row("tests", "-", ONE_TEST % kind)
    for reward, answer, data, message in (
        ("other", "x", "", "unknown reward 'other'; the job has exact, numeric"),
        ("numeric", "many", "", "not a number"),
        ("numeric", "5 gronk", "", "unknown unit"),
        ("choice", "12", "", "must be a letter"),
        ("tests", "x", "", "must be a list of {input, output}"),
        ("tests", "x", '{"tests": []}', "must be a list of {input, output}"),
        ("tests", "x", '{"tests": [{"input": "5", "output": " "}]}', "no test has an output"),
        ("tests", "x", MORE_TESTS % "checker", "data.checker is not used, because outputs are compared word by word"),
        ("tests", "x", MORE_TESTS % "private_tests", "data.private_tests is not run: write all tests in tests"),
        ("tests", "x", MORE_TESTS % "time_limit", "data.time_limit is not used: set timeoutSeconds of the reward"),
        ("tests", "x", MORE_TESTS % "timeLimit", "data.timeLimit is not used: set timeoutSeconds of the reward"),
        ("tests", "x", MORE_TESTS % "entry_point", "data.entry_point is of tests that call a function"),
        ("tests", "x", MORE_TESTS % "input_file", "data.input_file is not used, because a program reads its standard"),
        ("tests", "x", MORE_TESTS % "epsilon", "data.epsilon is not used, because outputs are compared word by word"),
        ("tests", "x", FUNCTION_TESTS, "data.fn_name is of tests that call a function"),
        ("tests", "x", ONE_TEST % '"testtype": "functional"', "testtype of test 1 is 'functional'"),
        ("tests", "x", ONE_TEST % '"timeout": 3', "timeout of test 1 is 3: .* the time limit is timeoutSeconds"),
    ):
        with pytest.raises(ValueError, match=message.replace("{", r"\{")):
            rewards.check_row(reward, answer, data)


FENCED = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"


@pytest.mark.parametrize(
    "answer",
    [FENCED, r"\boxed{" + FENCED + "}", FENCED + "\nso \\boxed{7}", FENCED.replace("a + b", "'\\\\boxed{' + '7}'")],
)
async def test_grade_tests_runs_the_program_as_a_script(answer: str) -> None:
    """No value of a last expression is added to the output. A box in the answer does not replace the program."""
    judge = FakeJudge(CallResult("ok", stdout="7\n"))
    spec = RewardSpec(name="code", type="Tests", correct_from=1.0)
    graded = await grade(
        spec, f"<answer>\n{answer}\n</answer>", judge, data={"tests": [{"input": "3 4", "output": "7"}]}
    )
    assert graded.verdict == "correct" and judge.scripts == [True]
    assert judge.codes[0].startswith("a, b = map(int, input().split())\nprint(")


@pytest.mark.parametrize("brace", ["}", "{"])
async def test_grade_tests_runs_a_boxed_program_with_a_brace(brace: str) -> None:
    """A brace in a text of the program, which ends the box too early or not at all, does not cut the program."""
    judge = FakeJudge(CallResult("ok", stdout="0\n"))
    code = f"s = input()\nprint(s.count('{brace}'))\n"
    graded = await grade(
        RewardSpec(name="code", type="Tests", correct_from=1.0),
        f"<answer>\\boxed{{\n```python\n{code}```\n}}</answer>",
        judge,
        data={"tests": [{"input": "x", "output": "0"}]},
    )
    assert judge.codes == [code] and graded.verdict == "correct"


@pytest.mark.parametrize("text", ["", "<answer></answer>", "<answer>\\boxed{print('{')}</answer>"])
async def test_grade_tests_without_a_program_has_no_answer(text: str) -> None:
    """A response without a program has no answer, and nothing runs."""
    judge = FakeJudge(CallResult("ok", stdout="7\n"))
    graded = await grade(
        RewardSpec(name="code", type="Tests"), text, judge, data={"tests": [{"input": "", "output": "7"}]}
    )
    assert (graded.verdict, judge.codes) == ("no_answer", [])


@pytest.mark.parametrize(
    "answer", ["\n    if 1:\n        print(7)\n    ", " if 1:\n     print(7)", " x = 1\nprint(7)", "print(7)\n"]
)
async def test_grade_tests_keeps_the_indentation_of_a_program(answer: str) -> None:
    """An answer without a fence may be indented as a whole, or start on the line of its tag."""
    judge = FakeJudge(CallResult("ok", stdout="7\n"))
    await grade(
        RewardSpec(name="code", type="Tests"), f"<answer>{answer}</answer>", judge,
        data={"tests": [{"input": "", "output": "7"}]},
    )  # fmt: skip
    assert judge.codes == [textwrap.dedent(answer).strip()]
    compile(judge.codes[0], "answer", "exec")
