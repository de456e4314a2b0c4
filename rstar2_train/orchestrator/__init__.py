"""The process that runs one attempt of one stage: pod 0 of the stage's trainer, or a child of `rstar2 run`.

    __main__            parses the command line, runs the stage, writes the outcome, exits with its code
      |
      v
    stages/{sft,grpo,filter,evaluate}     the loop of each stage type; the steps of GRPO: pipeline
      |            |             |
      |            |             +--> validation        measures a model on the held-out set
      |            +--> rollout_session ---> inference (engines), judge, rollout (agent loop)
      +--> trainer_session ---> trainer (ranks), checkpoints, final model

Modules:

- `context`          the job, the state directory, the endpoints, progress and stop requests of the attempt
- `sessions`         how a stage creates its sessions and its chat format; tests pass others
- `trainer_session`  ranks and checkpoints of the attempt
- `rollout_session`  engines and judge of the attempt
- `engine_weights`   publishes weight versions and loads them into the engines
- `weight_transports`  how weight versions travel from the ranks to the engines
- `device_sharing`     trainer and engine time-share one device
- `leftovers`        deletes what killed attempts left behind
- `problem_files`    the problems of a data file
- `long_prompts`     prompts of a measurement that leave no space for the response
- `initial_policy`   the model and the optimiser that a stage starts from
- `pipeline`         the steps of a GRPO stage: generator, trainer, publisher
- `selection`        from scored rollouts to training sequences: Resample-on-Correct and advantages
- `triggers`         when a GRPO stage finishes before its last step
- `validation`       a validation run and the run of an Evaluate stage
"""
