"""Commands that start processes around an orchestrator or an engine.

- `local`: `rstar2 run`: a whole job on one machine, and the child processes that the others share.
- `evaluation`: `rstar2 eval` and `filter`: sample a model without a job.
- `external`: engines and judges that run already.
- `model_folder`: checks of a model folder.
- `pod`: the programs in a job's pods, which the operator starts.

    cli -> local.run, evaluation.{evaluate,filter} -> local.services -> Supervisor -> orchestrator, engines, judge
    operator -> Job -> `python -m rstar2_train.launch.pod` -> Ray, orchestrator
"""
