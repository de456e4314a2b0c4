"""The API: models of the AgenticRLJob, their validation and CRD, and the contracts between the processes of a job.

    manifest (YAML) ──> loader.py ──> validation.py ──> job.py: AgenticRLJob ──> CLI, operator, every process of a job
                                        │   ├─ roles.py, stages.py, kube.py     models of the spec
                                        │   └─ base.py                          names, quantities, list types
                                        └─> rules.py, *_rules.py ──> issue.py  errors and warnings
    job.py, status.py, cel.py ──> crd.py ──> crds/, helm/ (`make crds`)

- `contracts.py`: progress, outcome, attempt record, exit codes; written by orchestrators, read by the operator and the
  CLI; with a version of their own. `judge_limits.py`: limits of a call on the judge's HTTP wire.
- `failure_policy.py`: the action after an attempt. `sources.py`: paths of models and data in pods. `state_dir.py`:
  paths in a job's state directory; `state_files.py`: reads its files.

Pure except for reading and writing the named files. Imports no torch; every other package may import it.
"""
