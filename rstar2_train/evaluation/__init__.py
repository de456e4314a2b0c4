"""Evaluation: samples a model on problems, computes figures from the samples, and renders reports.

    orchestrator (Evaluate, Filter, validation; rstar2 eval and filter run such a stage)
            │
            ├──> benchmarks: problems of the benchmark files
            └──> sampling: generates the missing samples
                    │ saves each trajectory
                    v
                 sample_cache ──> sample_result (one per sample)
                    ^                   │
          settings, model_fingerprint   ├──> difficulty ──> the problems that a filter keeps
          (name of the file)            └──> scores, statistics ──> result ──> records ──┬──> evaluation_files
                                                     │                                   └──> job_report
                                                     └──> benchmark_figures ──> benchmarks

Modules:

- `benchmarks`: the problems of benchmark files.
- `sampling`: generates the missing samples and saves each one.
- `sample_cache`: the file of finished samples.
- `settings`: the settings that determine the samples, and the name of their file.
- `sample_result`: the result of one sample, without its tokens.
- `model_fingerprint`: hash of a model's config and weights.
- `scores`, `statistics`: figures of a set of samples.
- `benchmark_figures`, `figure_table`: figures that a benchmark adds, and their tables.
- `records`, `record_model`: the JSON records, `evaluation.json` and `report.json`.
- `difficulty`: the figures of a filter, and the problems that it keeps.
- `result`: the record of an evaluation.
- `evaluation_files`, `html_report`: its files, and the page for a browser.
- `job_report`: the report of a job.
"""
