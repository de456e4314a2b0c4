"""The benchmarks with code of their own, one folder each. The core imports nothing of it; `utils/plugins.py` loads it.

    rewards.answer_forms ──────────┐
    data.prepare.layouts ──────────┼──> utils.plugins ──> BENCHMARKS ──> ifeval, bfcl
    evaluation.benchmark_figures ──┘

A folder has up to three modules, each with an object `PLUGIN`:

- `answers`: an `AnswerForm`: rows without a known answer, how they are graded and described.
- `layout`: a `DatasetLayout`: `rstar2 data prepare` converts the published rows.
- `figures`: a `BenchmarkFigures`: figures besides pass@1, for the record, the tracking, the page and the terminal.

To add a benchmark, write its folder and enter its name in `BENCHMARKS`.
"""

BENCHMARKS: tuple[str, ...] = (
    "ifeval",
    "bfcl",
)
"""The folders, in the order of their tables and layouts."""
