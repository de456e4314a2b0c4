"""`rstar2 eval` and `rstar2 filter`: sample a model without a job.

- `evaluate`, `filter`: the two commands: their input, and the figures that they compute from the samples.
- `plan`: all decisions before a process starts.
- `model`: the model folder or endpoint.
- `runner`: starts the services and generates the missing samples.

    cli/eval.py   -> evaluate -+-> plan -> model
    cli/filter.py -> filter ---+-> runner -> local.services, evaluation.sampling
"""
