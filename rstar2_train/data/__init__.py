"""The data of a job: how files become problems and demonstrations, and in which order a stage draws them.

    rstar2 data ──> prepare ──> problems.jsonl, conversations.jsonl, benchmark.jsonl
    (public datasets)                 │ named in a manifest
                                      v
    manifest ──> sources ──> path of a data file ──> problems, demonstrations ──> readers
                    │ generated://tiny/...              │  Problem, Demonstration
                    └──> tiny                           v
                                        orchestrator, evaluation, rollout
                                                        ^  indices of a step
                                        sampler ────────┘

Modules:

- `json_values`: parses JSON without a loss.
- `readers`: reads the rows of a data file.
- `problems`: validates rows as problems.
- `demonstrations`: validates rows as demonstrations.
- `demonstration_calls`: validates the calls of demonstrations, their results, and declared tools.
- `sources`: resolves the `source` and `data` values of a manifest to paths on this machine.
- `known_answers`: finds known answers without a clear type or meaning.
- `sampler`: the order in which a stage draws its data.
- `prepare`: converts and cleans public datasets (`rstar2 data`).
- `tiny`: generates the tiny task, the data of the examples and tests.
"""
