r"""Measures the accuracy and speed of answer verification on the gold answers of benchmarks.

`make bench-verify` writes bench/results/verify.json. For every gold answer it checks: the answer is extracted from a
response that contains it, it verifies against itself, rewritings are accepted, and near misses are rejected.
bench/forms generates both. The parser runs the judge's snippet in one warm process with the judge's time limit; `make
bench-judge` measures the cost of the sandbox. The data is a folder with *.jsonl files whose rows have an `answer`:
`--data FOLDER`, or RSTAR2_BENCHMARKS.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.forms.algebra import ALGEBRA
from bench.forms.numbers import NUMBERS
from bench.forms.roots import ROOTS
from bench.forms.shapes import SHAPES
from bench.forms.texts import TEXTS
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.rewards.extract import extract_answer
from rstar2_train.rewards.verdict import Verdict
from rstar2_train.rewards.verify import score, verify

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "verify.json"
FORMS = (*NUMBERS, *TEXTS, *ROOTS, *SHAPES, *ALGEBRA)
"""The form of a gold answer is the first one with a matching pattern."""
MAX_FAILURES = 40
"""Maximum failures per form in the results."""

_CHILD = """
import contextlib, io, json, sys
import math_verify
print(flush=True)
for line in sys.stdin:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(json.loads(line), {})
    print(json.dumps(out.getvalue()), flush=True)
"""


class SnippetResult(NamedTuple):
    """The result of a snippet."""

    status: str
    stdout: str
    exit_code: int | None = None


class WarmParser:
    """Runs snippets in sequence in a process with the loaded parser. Kills the process after a timeout."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _CHILD]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # printed after the parser is loaded
        return process

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> SnippetResult:
        """Run a snippet as the judge's client does. Of `limits`, only the time applies."""
        stdin_pipe, stdout_pipe = self._process.stdin, self._process.stdout
        assert stdin_pipe is not None and stdout_pipe is not None
        start = time.monotonic()
        stdin_pipe.write(json.dumps(code) + "\n")
        stdin_pipe.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout_pipe, selectors.EVENT_READ)
            answered = selector.select(limits.wall_seconds if limits else None)
        line = stdout_pipe.readline() if answered else ""
        self.calls, self.seconds = self.calls + 1, self.seconds + time.monotonic() - start
        if line:
            return SnippetResult("ok", json.loads(line))
        self.close()
        self._process = self._start()
        return SnippetResult("error" if answered else "timeout", "")

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


class Case(NamedTuple):
    """An answer to verify against a gold answer."""

    kind: str
    """`itself`, `same` or `other`."""
    form: str
    gold: str
    answer: str


def response(answer: str) -> str:
    """Return a response of a model with the answer."""
    return f"The sum is 17, so I get 3 as well.</reason>\n<answer>\nIt is $\\boxed{{{answer}}}$.\n</answer>"


def cases(gold: str) -> Iterator[Case]:
    """Yield all cases of one gold answer. Raises ValueError if no form matches it."""
    plain = gold.replace(" ", "")
    for form in FORMS:
        match = form.pattern.fullmatch(gold if form.name == "word" else plain)
        if match:
            yield Case("itself", form.name, gold, gold)
            for kind, generate in (("same", form.same), ("other", form.other)):
                for answer in dict.fromkeys(generate(match)):
                    yield Case(kind, form.name, gold, answer)
            return
    raise ValueError(f"{gold!r} has no known form; add one to bench/forms")


def read_golds(folder: Path) -> dict[str, list[str]]:
    """Return file name -> gold answers."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{folder}: no *.jsonl file; set the folder of the benchmark files with --data")
    return {
        path.name: [str(json.loads(line)["answer"]) for line in path.read_text(encoding="utf-8").splitlines() if line]
        for path in files
    }


async def verify_cases(all_cases: list[Case], parser: WarmParser) -> list[Verdict | None]:
    """Return the verdict of each case."""
    verdicts = []
    for number, case in enumerate(all_cases):
        verdicts.append((await verify(response(case.answer), case.gold, judge=parser)).verdict)
        if number % 1000 == 999:
            print(f"{number + 1} of {len(all_cases)}", file=sys.stderr, flush=True)
    return verdicts


def results_by_form(all_cases: list[Case], verdicts: list[Verdict | None]) -> dict[str, Any]:
    """Return the counts and failures of each form."""
    forms: dict[str, Any] = {}
    for case, verdict in zip(all_cases, verdicts, strict=True):
        form = forms.setdefault(
            case.form,
            {"golds": 0, "itself": 0, "same": 0, "sameAccepted": 0, "other": 0, "otherAccepted": 0, "failures": []},
        )
        accepted = verdict == "correct"
        if case.kind == "itself":
            form["golds"] += 1
            form["itself"] += accepted
        else:
            form[case.kind] += 1
            form[f"{case.kind}Accepted"] += accepted
        if accepted == (case.kind == "other") or verdict not in ("correct", "wrong"):
            form["failures"].append({"kind": case.kind, "gold": case.gold, "answer": case.answer, "verdict": verdict})
    for form in forms.values():
        form["failures"] = form["failures"][:MAX_FAILURES]
    return dict(sorted(forms.items()))


def integer_rate(golds: list[str], seconds: float = 2.0) -> float:
    """Return integer verifications per second on one core: correct, typeset and wrong answers in a long response."""
    reasoning = "I think of 3 and then of \\boxed{4}. " * 400
    templates = ("{}", "${}$", "{}.0", r"{}\text{{ cm}}", "{}1")
    texts = [(reasoning + response(template.format(gold)), gold) for gold in golds for template in templates]
    done = 0
    start = time.process_time()
    while time.process_time() - start < seconds:
        for text, gold in texts:
            assert score(text, gold).verdict in ("correct", "wrong")  # None would require the parser
        done += len(texts)
    return done / (time.process_time() - start)


def rate_table(forms: dict[str, Any]) -> Table:
    """Return the table of the terminal."""
    table = Table(title="accepted answers per form")
    for column in ("form", "gold\nanswers", "accepted", "rewritings", "accepted", "near\nmisses", "accepted"):
        table.add_column(column, justify="left" if column == "form" else "right")
    for name, form in forms.items():
        same, other = form["sameAccepted"] / form["same"], form["otherAccepted"] / form["other"]
        cells = [name, str(form["golds"]), f"{form['itself'] / form['golds']:.1%}", str(form["same"]), f"{same:.2%}"]
        table.add_row(*cells, str(form["other"]), f"{other:.2%}")
    return table


def main() -> None:
    """Run all measurements and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("RSTAR2_BENCHMARKS"),
        help="folder of the benchmark files (default: RSTAR2_BENCHMARKS)",
    )
    parser.add_argument("--forms", nargs="+", help="measure these forms only, without writing results")
    arguments = parser.parse_args()
    if arguments.data is None:
        raise SystemExit("no data: set --data FOLDER or RSTAR2_BENCHMARKS to a folder with *.jsonl files")
    files = read_golds(arguments.data)
    golds = [gold for answers in files.values() for gold in answers]
    all_cases = [case for gold in dict.fromkeys(golds) for case in cases(gold)]
    if arguments.forms:
        all_cases = [case for case in all_cases if case.form in arguments.forms]
    warm = WarmParser()
    try:
        verdicts = asyncio.run(verify_cases(all_cases, warm))
    finally:
        warm.close()
    forms = results_by_form(all_cases, verdicts)
    extracted = {
        name: sum(extract_answer(response(gold)) == gold for gold in answers) for name, answers in files.items()
    }
    integers = [case.gold for case in all_cases if case.kind == "itself" and case.gold.lstrip("-").isdigit()]
    counted = collections.Counter(verdict for verdict in verdicts)
    same, other = (sum(form[key] for form in forms.values()) for key in ("same", "other"))
    results = {
        "files": {name: {"golds": len(answers), "extracted": extracted[name]} for name, answers in files.items()},
        "distinctGolds": sum(form["golds"] for form in forms.values()),
        "itself": sum(form["itself"] for form in forms.values()),
        "rewritings": {"tried": same, "accepted": sum(form["sameAccepted"] for form in forms.values())},
        "nearMisses": {"tried": other, "accepted": sum(form["otherAccepted"] for form in forms.values())},
        "verdicts": {str(verdict): count for verdict, count in counted.most_common()},
        "integerVerificationsPerCoreSecond": round(integer_rate(integers)) if integers else None,
        "parser": {
            "calls": warm.calls,
            "share": round(warm.calls / len(all_cases), 3),
            "perSecond": round(warm.calls / warm.seconds, 1) if warm.calls else None,
        },
        "forms": forms,
    }
    Console(width=110).print(rate_table(forms))
    for name, form in forms.items():
        for failure in form["failures"]:
            print(f"{name}: {failure['kind']}: {failure['answer']!r} for {failure['gold']!r}: {failure['verdict']}")
    print(json.dumps({key: value for key, value in results.items() if key != "forms"}))
    if not arguments.forms:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
