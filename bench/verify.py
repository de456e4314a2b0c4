r"""Measures which answers the verifier accepts, next to plain math-verify, and how fast it is.

`make bench-verify` writes bench/results/verify.json. It has two sets of pairs of an answer and a gold answer:

- generated classes (bench/forms/generated.py): each class draws gold answers, writes them in other ways, and changes
  them slightly;
- benchmark files: for every gold answer, rewritings and near misses by its form (bench/forms). The data is a folder
  with *.jsonl files whose rows have an `answer`: `--data FOLDER`, or RSTAR2_BENCHMARKS. Without a folder this set is
  empty.

Other forms must be accepted, near misses refused. Both sets are also compared by math-verify alone, with its defaults.
The check runs the judge's program in warm processes, one per core; `make bench-judge` measures the cost of the sandbox.
QUICK=1 takes fewer gold answers of the files and compares every 8th generated pair with math-verify; the JSON keys are
the same. The verdicts of math-verify are kept in the user's cache, because they take most of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.forms import (
    class_expressions,
    class_families,
    class_meanings,
    class_notations,
    class_numbers,
    class_paired,
    class_structures,
)
from bench.forms.algebra import ALGEBRA
from bench.forms.form import GENERIC
from bench.forms.generated import CLASSES, generated
from bench.forms.numbers import NUMBERS
from bench.forms.roots import ROOTS
from bench.forms.shapes import SHAPES
from bench.forms.texts import TEXTS
from bench.provenance import describe_commit
from bench.verify_baseline import BaselineCache, accepted_by_math_verify, limit_memory
from rstar2_train.api.judge_limits import JudgeLimits
from rstar2_train.rewards.extract import extract_answer
from rstar2_train.rewards.verdict import Verdict
from rstar2_train.rewards.verify import score, verify

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results" / "verify.json"
FORMS = (*NUMBERS, *TEXTS, *ROOTS, *SHAPES, *ALGEBRA)
"""The form of a gold answer is the first one with a matching pattern; GENERIC has none."""
CLASS_MODULES = (
    class_numbers,
    class_expressions,
    class_structures,
    class_notations,
    class_families,
    class_meanings,
    class_paired,
)
"""The modules that fill CLASSES."""
MAX_FAILURES = 40
"""Maximum failures per form or class in the results."""
GOLDS_PER_CLASS = 22
"""Gold answers per class."""
STEP = 8
"""math-verify compares every n-th pair of the benchmark files; in the short form also of the generated classes. The
short form has every n-th gold answer of the benchmark files."""
CLASS_STEP = 4
"""math-verify compares every n-th pair of the generated classes in the long form: some need its limit of 5 s each."""
CHUNK = 50


class Case(NamedTuple):
    """An answer to verify against a gold answer."""

    kind: str
    """`itself`, `same` or `other`."""
    form: str
    """Form of the gold answer, or class."""
    gold: str
    answer: str


class Outcome(NamedTuple):
    """The measurement of a case."""

    verdict: Verdict | None
    milliseconds: float
    """CPU time of the parser's check; 0 if text decided."""
    baseline: bool | None
    """Whether plain math-verify accepts the answer; None if it was not asked."""


class SnippetResult(NamedTuple):
    """The result of a program."""

    status: str
    stdout: str
    exit_code: int | None = None


class WarmProcess:
    """Runs the judge's programs in this process, as a warm sandbox does. The program has its own limit of CPU time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def run(self, code: str, stdin: str = "", *, limits: JudgeLimits | None = None) -> SnippetResult:
        """Run a program as the judge's client does."""
        start = time.process_time()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        self.seconds += time.process_time() - start
        return SnippetResult("ok", printed.getvalue())


def response(answer: str) -> str:
    """Return a response of a model with the answer."""
    return f"The sum is 17, so I get 3 as well.</reason>\n<answer>\nIt is $\\boxed{{{answer}}}$.\n</answer>"


def cases(gold: str) -> Iterator[Case]:
    """Yield all cases of one gold answer. A gold answer without a form has the generic one."""
    plain = gold.replace(" ", "")
    for form in (*FORMS, GENERIC):
        match = form.pattern.fullmatch(gold if form.name in ("word", GENERIC.name) else plain)
        if match is None:
            continue
        yield Case("itself", form.name, gold, gold)
        try:
            rewritten = [
                (kind, list(dict.fromkeys(generate(match))))
                for kind, generate in (("same", form.same), ("other", form.other))
            ]
        except Exception:  # the form's generator does not cover this text
            match = GENERIC.pattern.fullmatch(gold)
            assert match is not None
            rewritten = [("same", list(GENERIC.same(match))), ("other", list(GENERIC.other(match)))]
        for kind, answers in rewritten:
            for answer in answers:
                yield Case(kind, form.name, gold, answer)
        return


def class_cases(golds: int) -> Iterator[Case]:
    """Yield the cases of all generated classes."""
    for name in CLASSES:
        for pairs in generated(name, golds):
            yield Case("itself", name, pairs.gold, pairs.gold)
            for kind, answers in (("same", pairs.same), ("other", pairs.other)):
                for answer in answers:
                    yield Case(kind, name, pairs.gold, answer)


def read_golds(folder: Path) -> dict[str, list[str]]:
    """Return file name -> gold answers."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{folder}: no *.jsonl file; set the folder of the benchmark files with --data")
    return {
        path.name: [str(json.loads(line)["answer"]) for line in path.read_text(encoding="utf-8").splitlines() if line]
        for path in files
    }


def measure(chunk: Sequence[tuple[Case, bool]]) -> list[Outcome]:
    """Return the outcomes of some cases in a worker; the flag of a case is whether math-verify compares it too."""
    outcomes = []
    for case, with_baseline in chunk:
        process = WarmProcess()
        verdict = asyncio.run(verify(response(case.answer), case.gold, judge=process)).verdict
        baseline = accepted_by_math_verify(case.answer, case.gold) if with_baseline else None
        outcomes.append(Outcome(verdict, process.seconds * 1000, baseline))
    return outcomes


def measure_all(all_cases: Sequence[Case], cache: BaselineCache, *, step: int, workers: int) -> list[Outcome]:
    """Return the outcome of each case; math-verify compares every `step`-th one of each kind."""
    counts: Counter[tuple[str, str]] = Counter()
    compared = []
    for case in all_cases:
        key = (case.form, case.kind)
        compared.append(case.kind != "itself" and counts[key] % step == 0)
        counts[key] += 1
    flagged = [
        (case, flag and (case.gold, case.answer) not in cache.verdicts)
        for case, flag in zip(all_cases, compared, strict=True)
    ]
    chunks = [flagged[at : at + CHUNK] for at in range(0, len(flagged), CHUNK)]
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(workers, initializer=limit_memory) as pool:
        for chunk, part in zip(chunks, pool.map(measure, chunks), strict=True):
            outcomes += part
            cache.add(
                (case.gold, case.answer, outcome.baseline) for (case, _), outcome in zip(chunk, part, strict=True)
            )
            if len(outcomes) % (20 * CHUNK) == 0:
                print(f"{len(outcomes)} of {len(all_cases)}", file=sys.stderr, flush=True)
    return [
        outcome._replace(baseline=cache.verdicts[case.gold, case.answer]) if flag else outcome
        for case, outcome, flag in zip(all_cases, outcomes, compared, strict=True)
    ]


def _rate(count: int, total: int) -> float | None:
    return round(count / total, 6) if total else None


def figures(measured: Iterable[tuple[Case, Outcome]]) -> dict[str, Any]:
    """Return the counts and rates of some cases."""
    measured = list(measured)
    own = {kind: [outcome for case, outcome in measured if case.kind == kind] for kind in ("itself", "same", "other")}
    results: dict[str, Any] = {"golds": len(own["itself"]), "itself": _accepted(own["itself"])}
    for key, kind, counted in (("rewritings", "same", "accepted"), ("nearMisses", "other", "refused")):
        tried = own[kind]
        compared = [outcome for outcome in tried if outcome.baseline is not None]
        ours, theirs = _accepted(tried), sum(bool(outcome.baseline) for outcome in compared)
        undecided = sum(outcome.verdict not in ("correct", "wrong", "no_answer") for outcome in tried)
        results[key] = {
            "tried": len(tried),
            "accepted": ours,
            "undecided": undecided,
            "rate": _rate(ours if counted == "accepted" else len(tried) - ours - undecided, len(tried)),
            "mathVerify": {
                "tried": len(compared),
                "accepted": theirs,
                "rate": _rate(theirs if counted == "accepted" else len(compared) - theirs, len(compared)),
            },
        }
    return results


def _accepted(outcomes: Iterable[Outcome]) -> int:
    return sum(outcome.verdict == "correct" for outcome in outcomes)


def results_by_form(measured: Sequence[tuple[Case, Outcome]]) -> dict[str, Any]:
    """Return the figures and failures of each form or class."""
    forms: dict[str, list[tuple[Case, Outcome]]] = {}
    for case, outcome in measured:
        forms.setdefault(case.form, []).append((case, outcome))
    results = {}
    for name, part in sorted(forms.items()):
        failures = [
            {"kind": case.kind, "gold": case.gold, "answer": case.answer, "verdict": outcome.verdict}
            for case, outcome in part
            if (outcome.verdict == "correct") == (case.kind == "other") or outcome.verdict in ("undecided", "internal")
        ]
        results[name] = {**figures(part), "failures": failures[:MAX_FAILURES]}
    return results


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


def check_times(outcomes: Sequence[Outcome]) -> dict[str, float | int | None]:
    """Return the number of checks by the parser, and their CPU time in milliseconds."""
    times = sorted(outcome.milliseconds for outcome in outcomes if outcome.milliseconds)
    if not times:
        return {"calls": 0, "share": 0.0, "p50Milliseconds": None, "p99Milliseconds": None, "maxMilliseconds": None}
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    return {
        "calls": len(times),
        "share": round(len(times) / len(outcomes), 3),
        "p50Milliseconds": round(p50, 2),
        "p99Milliseconds": round(p99, 2),
        "maxMilliseconds": round(times[-1], 1),
    }


def rate_table(title: str, forms: dict[str, Any]) -> Table:
    """Return the table of the terminal."""
    table = Table(title=title)
    columns = (
        "form",
        "gold\nanswers",
        "other\nforms",
        "accepted",
        "math-\nverify",
        "near\nmisses",
        "refused",
        "math-\nverify",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "form" else "right")
    for name, form in forms.items():
        cells = [name, str(form["golds"])]
        for key in ("rewritings", "nearMisses"):
            rates = (form[key]["rate"], form[key]["mathVerify"]["rate"])
            cells += [str(form[key]["tried"]), *("-" if rate is None else f"{rate:.2%}" for rate in rates)]
        table.add_row(*cells)
    return table


def section(all_cases: list[Case], outcomes: list[Outcome], forms: str) -> dict[str, Any]:
    """Return the results of one set of pairs, with the results per form under the key `forms`."""
    measured = list(zip(all_cases, outcomes, strict=True))
    return {**figures(measured), forms: results_by_form(measured)}


def main() -> None:
    """Run all measurements and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("RSTAR2_BENCHMARKS"),
        help="folder of the benchmark files (default: RSTAR2_BENCHMARKS)",
    )
    parser.add_argument("--forms", nargs="+", help="measure these forms and classes only, without writing results")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    arguments = parser.parse_args()
    quick = os.environ.get("QUICK", "") not in ("", "0")
    files = read_golds(arguments.data) if arguments.data else {}
    golds = list(dict.fromkeys(gold for answers in files.values() for gold in answers))
    measured_golds = golds[::STEP] if quick else golds
    sets = {
        "generated": list(class_cases(GOLDS_PER_CLASS)),
        "benchmarks": [case for gold in measured_golds for case in cases(gold)],
    }
    if arguments.forms:
        sets = {name: [case for case in part if case.form in arguments.forms] for name, part in sets.items()}
    start = time.monotonic()
    cache = BaselineCache()
    steps = {"generated": STEP if quick else CLASS_STEP, "benchmarks": STEP}
    measured = {
        name: measure_all(part, cache, step=steps[name], workers=arguments.workers) for name, part in sets.items()
    }
    classes = section(sets["generated"], measured["generated"], "classes")
    benchmarks = section(sets["benchmarks"], measured["benchmarks"], "forms")
    outcomes = [*measured["generated"], *measured["benchmarks"]]
    integers = [gold for gold in golds if gold.lstrip("-").isdigit()] or ["17", "-204", "1005"]
    results = {
        "command": f"{'QUICK=1 ' if quick else ''}make bench-verify",
        "commit": describe_commit(),
        "quick": quick,
        "seconds": round(time.monotonic() - start),
        "generated": {"pairs": sum(case.kind != "itself" for case in sets["generated"]), **classes},
        "benchmarks": {
            "files": {
                name: {
                    "golds": len(answers),
                    "extracted": sum(extract_answer(response(gold)) == gold for gold in answers),
                }
                for name, answers in files.items()
            },
            "pairs": sum(case.kind != "itself" for case in sets["benchmarks"]),
            **benchmarks,
        },
        "verdicts": {str(verdict): count for verdict, count in Counter(out.verdict for out in outcomes).most_common()},
        "integerVerificationsPerCoreSecond": round(integer_rate(integers)),
        "parser": check_times(outcomes),
    }
    tables = (("generated classes", classes["classes"]), ("gold answers of the benchmark files", benchmarks["forms"]))
    for title, forms in tables:
        Console(width=110).print(rate_table(title, forms))
        for name, form in forms.items():
            for failure in form["failures"]:
                print(f"{name}: {failure['kind']}: {failure['answer']!r} for {failure['gold']!r}: {failure['verdict']}")
    summary = {
        name: {key: value for key, value in part.items() if key not in ("forms", "classes")}
        for name, part in results.items()
        if isinstance(part, dict)
    }
    print(json.dumps(summary))
    if not arguments.forms:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
