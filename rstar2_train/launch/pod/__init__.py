"""The programs in a job's pods: `python -m rstar2_train.launch.pod prepare|launch|report`.

- `prepare`: generates or downloads data and model before the first stage.
- `attempt`: one pod of a stage attempt: the orchestrator on index 0, a Ray node on every other index.
- `ray_cluster`: command lines of the attempt's Ray cluster.
- `progress_mirror`, `progress_config_map`: copy progress and outcome from the storage to the operator.
- `report`: the report of a finished job.

    operator -> Job prepare -> Job of a stage attempt (launch) ... -> Job report
                                  |- index 0: Ray head, orchestrator, MLflow shipper, ProgressMirror -> ConfigMap
                                  `- index N: Ray node
"""
