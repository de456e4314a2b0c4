"""Evaluation: samples a model on problems, computes figures from the samples, and renders reports.

    launch/evaluation (rstar2 eval, rstar2 filter)      orchestrator (Evaluate, Filter, validation)
            │                                                   │
            ├──> benchmarks: problems of the benchmark files <──┤
            └──> sampling: generates the missing samples <──────┘
                    │ saves each trajectory in a SampleStore
                    v
                 sample_cache ──> sample_result (one per sample)
                    ^                   │
          model_fingerprint             ├──> difficulty ──> the problems that a filter keeps
          (part of the cache key)       └──> statistics, ifeval, bfcl ──> records ──┬──> result ──> html_report
                                                                                    └──> job_report (stages of a job)

Modules:

- `benchmarks`: the problems of benchmark files.
- `sampling`: generates the missing samples and saves each one.
- `sample_cache`: the file of finished samples.
- `sample_result`: the result of one sample, without its tokens.
- `model_fingerprint`: hash of a model's config and weights.
- `statistics`, `ifeval`, `bfcl`: figures of a set of samples.
- `records`: the JSON records, `evaluation.json` and `report.json`.
- `difficulty`: the figures of a filter, and the problems that it keeps.
- `result`, `html_report`: the report of `rstar2 eval`.
- `job_report`: the report of a job.
"""
