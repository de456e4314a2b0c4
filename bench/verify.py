r"""How well and how fast answers are verified, on the gold answers of AIME24 and MATH-500 given as files.

`make bench-verify` writes bench/results/verify.json. For every gold answer: is it found in a response that states it,
does it verify against itself, are rewritings of it accepted and near misses refused (bench/forms makes
both). What needs the parser runs as the very snippet that the judge would be given, in one
warm process under the same time limit: what the sandbox adds is measured by `make bench-judge`. The data is the
user's: `--data FOLDER`, or RSTAR2_BENCHMARKS, a folder with *.jsonl whose lines have an `answer`.
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
from bench.forms.words import WORDS
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.rewards.extract import extract_answer
from rstar2_train.rewards.verdict import Verdict
from rstar2_train.rewards.verify import score, verify

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "verify.json"
FORMS = (*NUMBERS, *WORDS, *ROOTS, *SHAPES, *ALGEBRA)
"""The first whose pattern takes a gold answer is its form."""
SHOWN = 40
"""Failures of a form that are written down."""

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


class Ended(NamedTuple):
    """How a snippet ended."""

    status: str
    stdout: str
    exit_code: int | None = None


class Warm:
    """Runs snippets one after the other in a process that keeps the parser loaded; one that is too slow is killed."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _CHILD]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # the parser is loaded
        return process

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> Ended:
        """As a judge's client; `limits` holds for the time alone."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None and back is not None
        began = time.monotonic()
        to.write(json.dumps(code) + "\n")
        to.flush()
        with selectors.DefaultSelector() as ready:
            ready.register(back, selectors.EVENT_READ)
            answered = ready.select(limits.wall_seconds if limits else None)
        line = back.readline() if answered else ""
        self.calls, self.seconds = self.calls + 1, self.seconds + time.monotonic() - began
        if line:
            return Ended("ok", json.loads(line))
        self.close()
        self._process = self._start()
        return Ended("error" if answered else "timeout", "")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class Case(NamedTuple):
    """An answer to verify against a gold one."""

    kind: str
    """`itself`, `same` or `other`."""
    form: str
    gold: str
    answer: str


def response(answer: str) -> str:
    """What a model may have written."""
    return f"The sum is 17, so I get 3 as well.</reason>\n<answer>\nIt is $\\boxed{{{answer}}}$.\n</answer>"


def cases(gold: str) -> Iterator[Case]:
    """Everything that is tried with one gold answer. Raises ValueError when no form takes it."""
    plain = gold.replace(" ", "")
    for form in FORMS:
        found = form.pattern.fullmatch(gold if form.name == "word" else plain)
        if found:
            yield Case("itself", form.name, gold, gold)
            for kind, made in (("same", form.same), ("other", form.other)):
                for answer in dict.fromkeys(made(found)):
                    yield Case(kind, form.name, gold, answer)
            return
    raise ValueError(f"{gold!r} is of no known form: add one to bench/forms")


def read(folder: Path) -> dict[str, list[str]]:
    """File name -> its gold answers."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{folder}: no *.jsonl there; --data wants the folder with the benchmarks' files")
    return {
        path.name: [str(json.loads(line)["answer"]) for line in path.read_text(encoding="utf-8").splitlines() if line]
        for path in files
    }


async def judged(every: list[Case], parser: Warm) -> list[Verdict | None]:
    """The verdict of each case."""
    verdicts = []
    for number, case in enumerate(every):
        verdicts.append((await verify(response(case.answer), case.gold, judge=parser)).verdict)
        if number % 1000 == 999:
            print(f"{number + 1} of {len(every)}", file=sys.stderr, flush=True)
    return verdicts


def by_form(every: list[Case], verdicts: list[Verdict | None]) -> dict[str, Any]:
    """Rates and failures of each form."""
    forms: dict[str, Any] = {}
    for case, verdict in zip(every, verdicts, strict=True):
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
        form["failures"] = form["failures"][:SHOWN]
    return dict(sorted(forms.items()))


def integer_rate(golds: list[str], seconds: float = 2.0) -> float:
    """Verifications a second of one core, of integers at the end of a long response: right, dressed, and wrong ones."""
    start = "I think of 3 and then of \\boxed{4}. " * 400
    dresses = ("{}", "${}$", "{}.0", r"{}\text{{ cm}}", "{}1")
    texts = [(start + response(dress.format(gold)), gold) for gold in golds for dress in dresses]
    done = 0
    began = time.process_time()
    while time.process_time() - began < seconds:
        for text, gold in texts:
            assert score(text, gold).verdict in ("correct", "wrong")  # None would be a call of the parser
        done += len(texts)
    return done / (time.process_time() - began)


def table(forms: dict[str, Any]) -> Table:
    """The rates for the terminal."""
    shown = Table()
    for column in ("form", "gold answers", "itself", "rewritings", "accepted", "near misses", "accepted"):
        shown.add_column(column, justify="left" if column == "form" else "right")
    for name, form in forms.items():
        same, other = form["sameAccepted"] / form["same"], form["otherAccepted"] / form["other"]
        cells = [name, str(form["golds"]), f"{form['itself'] / form['golds']:.1%}", str(form["same"]), f"{same:.2%}"]
        shown.add_row(*cells, str(form["other"]), f"{other:.2%}")
    return shown


def main() -> None:
    """Measures everything and writes it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("RSTAR2_BENCHMARKS"), help="default: RSTAR2_BENCHMARKS"
    )
    parser.add_argument("--forms", nargs="+", help="only these; nothing is written down then")
    given = parser.parse_args()
    if given.data is None:
        raise SystemExit("no data: --data FOLDER, or RSTAR2_BENCHMARKS, with aime24.jsonl and math500.jsonl in it")
    files = read(given.data)
    golds = [gold for answers in files.values() for gold in answers]
    every = [case for gold in dict.fromkeys(golds) for case in cases(gold)]
    if given.forms:
        every = [case for case in every if case.form in given.forms]
    warm = Warm()
    try:
        verdicts = asyncio.run(judged(every, warm))
    finally:
        warm.close()
    forms = by_form(every, verdicts)
    extracted = {
        name: sum(extract_answer(response(gold)) == gold for gold in answers) for name, answers in files.items()
    }
    integers = [case.gold for case in every if case.kind == "itself" and case.gold.lstrip("-").isdigit()]
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
            "share": round(warm.calls / len(every), 3),
            "perSecond": round(warm.calls / warm.seconds, 1) if warm.calls else None,
        },
        "forms": forms,
    }
    Console().print(table(forms))
    for name, form in forms.items():
        for failure in form["failures"]:
            print(f"{name}: {failure['kind']}: {failure['answer']!r} for {failure['gold']!r}: {failure['verdict']}")
    print(json.dumps({key: value for key, value in results.items() if key != "forms"}))
    if not given.forms:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
