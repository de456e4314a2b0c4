"""Commands that start processes around an orchestrator or an engine.

- `local`: `rstar2 run`: a whole job on one machine, and the child processes that the others share.
- `evaluation`: `rstar2 eval` and `filter`, which run a job of one stage, and `rstar2 env check`.
- `doctor`: `rstar2 doctor`, the checks of a machine and of a cluster.
- `running_services`: engines and judges that run already.
- `model_folder`: checks of a model folder; `adapter_model`: an adapter with its base in place of one.
- `pod`: the programs in a job's pods, which the operator starts.
- `source_errors`: the checks of the files that a job names, before it starts.
- `state_upload`: the state of a job in a bucket, for `local` and `pod`.

    cli -> evaluation.{evaluate,filter} -> local.run -> local.services -> Supervisor -> orchestrator, engines, judge
    operator -> Job -> `python -m rstar2_train.launch.pod` -> Ray, orchestrator
"""
