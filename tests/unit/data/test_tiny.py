"""The tiny task: reproducible by seed, no leak of held-out problems, demonstrations that match parser and tool."""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.loader import read_manifest
from rstar2_train.api.roles import ModelSource
from rstar2_train.data.demonstrations import Demonstration, read_demonstrations
from rstar2_train.data.problems import Problem, read_problems
from rstar2_train.data.tiny import Recipe, write_tiny
from rstar2_train.data.tiny.demonstrations import SYSTEM_PROMPT, DemonstrationFlaws, demonstrate, error_message
from rstar2_train.data.tiny.tasks import LARGEST_RESULT, OPERATIONS, OperationChain, draw_chain
from rstar2_train.rewards.verify import compare_text
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.tools.parser import parse_calls, render_fault, render_result

SMALL = Recipe(demo_problems=300, demos_per_problem=1)
PROBLEM_FILES = ("rl-1", "rl-2", "rl-3", "choose", "report")
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, seed=5, recipe=SMALL)
    return folder


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_write_tiny_with_same_seed_writes_same_bytes(tiny: Path, tmp_path: Path) -> None:
    """The seed determines every byte."""
    for name, seed in (("same", 5), ("other", 6)):
        (tmp_path / name).mkdir()
        write_tiny(tmp_path / name, seed=seed, recipe=SMALL)
    assert _digests(tmp_path / "same") == _digests(tiny)
    other = _digests(tmp_path / "other")
    assert all(other[name] != _digests(tiny)[name] for name in ("sft.jsonl", "report.jsonl", "base/model.safetensors"))


def test_write_tiny_files_share_no_problem(tiny: Path) -> None:
    """No problem is in two files."""
    texts = [problem.problem for name in PROBLEM_FILES for problem in read_problems(tiny / f"{name}.jsonl")]
    texts += [row.messages[1]["content"] for row in read_demonstrations(tiny / "sft.jsonl")]
    assert [text for text, count in Counter(texts).items() if count > 1] == []


def test_write_tiny_held_out_set_is_balanced(tiny: Path) -> None:
    """The held-out set is large, and its first problems are balanced over the levels."""
    report = list(read_problems(tiny / "report.jsonl"))
    assert len(report) >= 400
    assert Counter(problem.slice for problem in report[:120]) == {"L1": 40, "L2": 40, "L3": 40}
    assert all(problem.hard == (problem.slice == "L3") for problem in report)


def test_write_tiny_answers_equal_python_results(tiny: Path) -> None:
    """Every answer is the result of the operations in Python."""
    expressions = {word: expression for word, (expression, _) in OPERATIONS.items()}
    for problem in read_problems(tiny / "report.jsonl"):
        values: dict[str, int] = {}
        for sentence in problem.problem.removesuffix(".").split(". ")[:-1]:
            _, name, _, _, word, _, left, _, right = sentence.split()
            expression = expressions[word].format(values.get(left, left), right)
            values[name] = eval(expression, {"math": __import__("math"), "max": max, "min": min})
            assert 1 <= values[name] <= LARGEST_RESULT
        assert problem.answer == str(values["XYZ"[int(problem.slice[1]) - 1]])


def _run(code: str) -> str:
    """Return the tool's response to a snippet of the demonstrations, which is executed in this process."""
    stdout, stderr, status = io.StringIO(), io.StringIO(), "ok"
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            exec(compile(code, "<snippet>", "exec"), {})
        except Exception as error:
            sys.__excepthook__(type(error), error, error.__traceback__)
            status = "error"
    return render_result(status=status, stdout=stdout.getvalue(), stderr=stderr.getvalue())


@pytest.mark.parametrize("code", ["print(math.gcd(3,4))", "prnt(3+4)", "print(3+4"])
def test_error_text_equals_executor_output(code: str) -> None:
    """The executor's program, run as a process of its own as in the sandbox, prints the same error."""
    script = "import sys; from rstar2_train.judge.executor.run_program import run_call\n"
    script += "sys.exit(run_call(sys.argv[1], to_the_end=True))"
    run = subprocess.run([sys.executable, "-c", script, code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert error_message(code) == render_result(status="error", stdout=run.stdout, stderr=run.stderr, exit_code=1)


def test_tool_messages_equal_parser_and_tool_output(tiny: Path) -> None:
    """Every tool message is the output of the parser or the tool for its call."""
    seen: Counter[str] = Counter()
    for row in read_demonstrations(tiny / "sft.jsonl"):
        turns = row.messages[2:]
        for call_turn, tool_turn in zip(turns[::2], turns[1::2], strict=False):
            (call,) = parse_calls(call_turn["content"], max_calls=8)
            expected = render_fault(call) if call.fault else _run(call.code)
            assert tool_turn == {"role": "tool", "content": expected}
            seen[expected if expected.startswith("error") else "ok"] += 1
    assert len(seen) == 5, seen  # success and each of the four ways to fail


def _solved(chains: list[OperationChain], flaws: DemonstrationFlaws) -> float:
    rng = random.Random(1)
    right = 0
    for chain in chains:
        last = demonstrate(chain, rng, flaws=flaws)[-1]["content"]
        right += compare_text(last, str(chain.values[-1]))[0] == "correct"
    return right / len(chains)


def test_demonstrate_without_flaws_is_always_correct() -> None:
    """Demonstrations without flaws are all correct; with the default flaws, most are wrong."""
    chains = [draw_chain(random.Random(seed), level=2) for seed in range(400)]
    perfect = DemonstrationFlaws(correct_operation=1, bad_call=0, guess=0, repeat=0, slip=0)
    assert _solved(chains, perfect) == 1
    assert _solved(chains, DemonstrationFlaws()) < 0.35


def _token_counts(tiny: Path) -> Callable[[Demonstration], int]:
    chat_format = ChatFormat.load(tiny / "base", ModelSource(source="m", system_prompt=SYSTEM_PROMPT, prompt_prefix=""))
    return lambda row: len(chat_format.encode_conversation(row.messages).token_ids)


def test_level_1_demonstrations_fit_60_tokens(tiny: Path) -> None:
    """The budgets of the manifests depend on this: a call has 8 tokens, its result 13, an answer 5."""
    count = _token_counts(tiny)
    rows = [row for row in read_demonstrations(tiny / "sft.jsonl") if row.level == 1 and len(row.messages) == 5]
    assert rows and max(count(row) for row in rows) < 60


def test_base_model_loads_with_half_a_million_parameters(tiny: Path) -> None:
    """Transformers loads the base model, which has about 0.5 million parameters."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny / "base")
    assert 500_000 < model.num_parameters() < 550_000
    assert model.config.tie_word_embeddings


@pytest.mark.parametrize(
    "manifest", [EXAMPLES / name for name in ("smoke.yaml", "tiny.yaml", "tiny-roc.yaml")], ids=lambda path: path.name
)
def test_manifests_use_system_prompt_of_demonstrations(manifest: Path) -> None:
    """The tiny manifests have the system prompt of the demonstrations."""
    model = AgenticRLJob.model_validate(read_manifest(manifest)).spec.model
    assert (model.system_prompt, model.prompt_prefix) == (SYSTEM_PROMPT, "")


def test_read_problems_of_tiny_returns_problems(tiny: Path) -> None:
    """The problem files are plain rows."""
    first = next(read_problems(tiny / "report.jsonl"))
    assert isinstance(first, Problem) and first.id == "report-0000"
