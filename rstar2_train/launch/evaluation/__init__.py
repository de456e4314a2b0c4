"""`rstar2 eval` and `rstar2 filter`: run a job of one stage. `rstar2 env check`: one row through the agent loop.

- `evaluate`, `filter`: the two commands: their input, and their reports.
- `one_stage_job`: all decisions before a process starts.
- `settings`: a manifest's settings, replaced by options of the command line.
- `model`: the model folder or endpoint.
- `measure`: runs the job, unless all samples exist.
- `task_check`: `rstar2 env check`.

    cli/eval.py   -> evaluate -+-> one_stage_job -> settings, model
    cli/filter.py -> filter ---+-> measure -> local.run -> orchestrator (Evaluate or Filter stage)
    cli/env.py    -> task_check -> settings, model
"""
