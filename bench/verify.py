r"""Measures which answers the package rstar2_verify accepts and how fast, next to math-verify on the same pairs.

`make bench-verify` writes bench/results/verify.json. It has four sets of pairs of an answer and a gold answer:

- the case files of the package (verify/tests/cases);
- generated classes (bench/forms/generated.py): each class draws gold answers, writes them in other ways, and changes
  them slightly;
- drawn expressions, as the printers of SymPy write them (verify/tests/printed.py);
- benchmark files: for every gold answer, rewritings and near misses by its form (bench/forms). The data is a folder
  with *.jsonl files whose rows have an `answer`: `--data FOLDER`, or RSTAR2_BENCHMARKS. Without a folder this set is
  empty.

Other forms must be accepted, near misses refused. math-verify, with its defaults, compares a sample of the pairs in the
same processes: some take its limit of five seconds. `make bench-judge` measures the cost of the sandbox. QUICK=1 takes
fewer gold answers and a smaller sample for math-verify; the JSON keys are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import runpy
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rstar2_verify import verify
from rstar2_verify.limited import warm_up
from rstar2_verify.verifier import Outcome

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
from bench.provenance import Load, describe_commit, describe_machine
from rstar2_train.rewards.extract import extract_answer
from rstar2_train.rewards.verify import compare_text

ROOT = Path(__file__).parents[1]
CASES = ROOT / "verify" / "tests" / "cases"
PRINTED = ROOT / "verify" / "tests" / "printed.py"
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
RATE_SECONDS = 2.0
"""CPU time in which integer verifications are counted."""
MAX_FAILURES = 40
"""Maximum failures per form or class in the results."""
GOLDS_PER_CLASS = 22
"""Gold answers per class."""
QUICK_GOLDS_PER_CLASS = 6
EXPRESSIONS_PER_KIND = 60
"""Drawn expressions per kind."""
QUICK_EXPRESSIONS_PER_KIND = 4
STEP = 8
"""math-verify compares every n-th pair of each form and kind; the short form has every n-th gold answer of the
benchmark files."""
QUICK_STEPS = {"cases": 32, "generated": 24, "printed": 24, "benchmarks": 8}
"""The steps of math-verify in the short form."""
CHUNK = 50
MAX_MEMORY_BYTES = 8 << 30
"""Address space of a worker. math-verify may compute a power of a power."""


class Case(NamedTuple):
    """An answer to verify against a gold answer."""

    kind: str
    """`itself`, `same` or `other`."""
    form: str
    """Form of the gold answer, class, or name of the case file."""
    gold: str
    answer: str


class Measurement(NamedTuple):
    """The measurement of a case."""

    outcome: Outcome
    milliseconds: float
    """CPU time of rstar2_verify."""
    baseline: bool | None
    """Whether math-verify accepts the answer; None if it was not asked."""
    baseline_milliseconds: float
    """CPU time of math-verify; 0 if it was not asked."""


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


def file_cases() -> Iterator[Case]:
    """Yield the cases of the case files of rstar2_verify."""
    for path in sorted(CASES.glob("*.jsonl")):
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            yield Case("same" if row["equal"] else "other", path.stem, row["known"], row["answer"])


def printed_cases(count: int) -> Iterator[Case]:
    """Yield drawn expressions in the forms of SymPy's printers, by printer."""
    for pair in runpy.run_path(str(PRINTED))["printed"](count):
        yield Case("same" if pair.equal else "other", pair.printer, pair.known, pair.answer)


def read_golds(folder: Path) -> dict[str, list[str]]:
    """Return file name -> gold answers."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{folder}: no *.jsonl file; set the folder of the benchmark files with --data")
    return {
        path.name: [str(json.loads(line)["answer"]) for line in path.read_text(encoding="utf-8").splitlines() if line]
        for path in files
    }


def prepare() -> None:
    """Warm both verifiers up. Above MAX_MEMORY_BYTES a worker has a MemoryError, which counts as refused."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    warm_up()
    accepted_by_math_verify(r"\frac{1}{2}", "0.5")


def accepted_by_math_verify(answer: str, gold: str) -> bool:
    """Return whether math-verify with its defaults accepts an answer."""
    import math_verify

    try:
        return bool(math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(f"${answer}$")))
    except Exception:  # its parser raises errors of many kinds
        return False


def measure(chunk: Sequence[tuple[Case, bool]]) -> list[Measurement]:
    """Return the measurements of some cases in a worker; the flag of a case is whether math-verify compares it too."""
    measurements = []
    for case, with_baseline in chunk:
        start = time.process_time()
        outcome = verify(case.gold, case.answer).outcome
        middle = time.process_time()
        baseline = accepted_by_math_verify(case.answer, case.gold) if with_baseline else None
        end = time.process_time() if with_baseline else middle
        measurements.append(Measurement(outcome, (middle - start) * 1000, baseline, (end - middle) * 1000))
    return measurements


def measure_all(all_cases: Sequence[Case], *, step: int, workers: int) -> list[Measurement]:
    """Return the measurement of each case; math-verify compares every `step`-th one of each form and kind."""
    counts: Counter[tuple[str, str]] = Counter()
    flagged = []
    for case in all_cases:
        key = (case.form, case.kind)
        flagged.append((case, case.kind != "itself" and counts[key] % step == 0))
        counts[key] += 1
    chunks = [flagged[at : at + CHUNK] for at in range(0, len(flagged), CHUNK)]
    measurements: list[Measurement] = []
    with ProcessPoolExecutor(workers, initializer=prepare) as pool:
        for part in pool.map(measure, chunks):
            measurements += part
            if len(measurements) % (20 * CHUNK) == 0:
                print(f"{len(measurements)} of {len(all_cases)}", file=sys.stderr, flush=True)
    return measurements


def _rate(count: int, total: int) -> float | None:
    return round(count / total, 6) if total else None


def figures(measured: Iterable[tuple[Case, Measurement]]) -> dict[str, Any]:
    """Return the counts and rates of some cases."""
    measured = list(measured)
    own = {kind: [outcome for case, outcome in measured if case.kind == kind] for kind in ("itself", "same", "other")}
    results: dict[str, Any] = {"golds": len(own["itself"]), "itself": _accepted(own["itself"])}
    for key, kind, counted in (("rewritings", "same", "accepted"), ("nearMisses", "other", "refused")):
        tried = own[kind]
        compared = [outcome for outcome in tried if outcome.baseline is not None]
        ours, theirs = _accepted(tried), sum(bool(outcome.baseline) for outcome in compared)
        undecided = sum(outcome.outcome == "undecided" for outcome in tried)
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


def _accepted(measurements: Iterable[Measurement]) -> int:
    return sum(measurement.outcome == "equal" for measurement in measurements)


def results_by_form(measured: Sequence[tuple[Case, Measurement]]) -> dict[str, Any]:
    """Return the figures and failures of each form or class."""
    forms: dict[str, list[tuple[Case, Measurement]]] = {}
    for case, measurement in measured:
        forms.setdefault(case.form, []).append((case, measurement))
    results = {}
    for name, part in sorted(forms.items()):
        failures = [
            {"kind": case.kind, "gold": case.gold, "answer": case.answer, "outcome": outcome.outcome}
            for case, outcome in part
            if outcome.outcome != ("different" if case.kind == "other" else "equal")
        ]
        results[name] = {**figures(part), "failures": failures[:MAX_FAILURES]}
    return results


def integer_rate(golds: list[str]) -> float:
    """Return integer verifications per second on one core: correct, typeset and wrong answers in a long response."""
    reasoning = "I think of 3 and then of \\boxed{4}. " * 400
    templates = ("{}", "${}$", "{}.0", "{}1")
    texts = [(reasoning + response(template.format(gold)), gold) for gold in golds for template in templates]
    done = 0
    start = time.process_time()
    while time.process_time() - start < RATE_SECONDS:
        for text, gold in texts:
            assert compare_text(text, gold)[0] in ("correct", "wrong")  # None would require the parser
        done += len(texts)
    return done / (time.process_time() - start)


def percentiles(times: Iterable[float]) -> dict[str, float | None]:
    """Return the percentiles of CPU times in milliseconds."""
    ordered = sorted(times)
    if not ordered:
        return {"p50Milliseconds": None, "p99Milliseconds": None, "maxMilliseconds": None}
    return {
        "p50Milliseconds": round(ordered[len(ordered) // 2], 2),
        "p99Milliseconds": round(ordered[len(ordered) * 99 // 100], 2),
        "maxMilliseconds": round(ordered[-1], 1),
    }


def times_of(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return the CPU times of all pairs, and of both verifiers on the pairs that math-verify compared."""
    compared = [measurement for measurement in measurements if measurement.baseline is not None]
    return {
        "allPairs": percentiles(measurement.milliseconds for measurement in measurements),
        "comparedPairs": len(compared),
        "compared": percentiles(measurement.milliseconds for measurement in compared),
        "mathVerify": percentiles(measurement.baseline_milliseconds for measurement in compared),
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


def section(all_cases: list[Case], measurements: list[Measurement]) -> dict[str, Any]:
    """Return the results of one set of pairs, with the results per form under the key `forms`."""
    measured = list(zip(all_cases, measurements, strict=True))
    return {
        "pairs": sum(case.kind != "itself" for case in all_cases),
        **figures(measured),
        "forms": results_by_form(measured),
    }


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
        "cases": list(file_cases()),
        "generated": list(class_cases(QUICK_GOLDS_PER_CLASS if quick else GOLDS_PER_CLASS)),
        "printed": list(printed_cases(QUICK_EXPRESSIONS_PER_KIND if quick else EXPRESSIONS_PER_KIND)),
        "benchmarks": [case for gold in measured_golds for case in cases(gold)],
    }
    if arguments.forms:
        sets = {name: [case for case in part if case.form in arguments.forms] for name, part in sets.items()}
    start, load = time.monotonic(), Load()
    measured = {
        name: measure_all(part, step=QUICK_STEPS[name] if quick else STEP, workers=arguments.workers)
        for name, part in sets.items()
    }
    sections = {name: section(sets[name], measured[name]) for name in sets}
    pairs = [
        measurement
        for name in sets
        for case, measurement in zip(sets[name], measured[name], strict=True)
        if case.kind != "itself"
    ]
    integers = [gold for gold in golds if gold.lstrip("-").isdigit()] or ["17", "-204", "1005"]
    results = {
        "command": f"{'QUICK=1 ' if quick else ''}make bench-verify",
        "commit": describe_commit(),
        "quick": quick,
        "seconds": round(time.monotonic() - start),
        "machine": describe_machine() | {"workers": arguments.workers},
        "loadAverage": load.describe(),
        **sections,
        "files": {
            name: {"golds": len(answers), "extracted": sum(extract_answer(response(gold)) == gold for gold in answers)}
            for name, answers in files.items()
        },
        "integerVerificationsPerCoreSecond": round(integer_rate(integers)),
        "times": times_of(pairs),
    }
    for title, part in sections.items():
        forms = part["forms"]
        Console(width=110).print(rate_table(title, forms))
        for name, form in forms.items():
            for failure in form["failures"]:
                print(f"{name}: {failure['kind']}: {failure['answer']!r} for {failure['gold']!r}: {failure['outcome']}")
    summary = {
        name: {key: value for key, value in part.items() if key != "forms"}
        for name, part in results.items()
        if isinstance(part, dict)
    }
    print(json.dumps(summary))
    if not arguments.forms:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
