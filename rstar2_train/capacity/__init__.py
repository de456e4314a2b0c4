"""The memory of a job before it starts: shapes of models, profiles of hardware, and what fits. Without torch.

    cli.plan, plan, trainer, launch, the operator
      |
      v
    fit ----> memory -----> model_shape       (known_models.json)
       \\----> hardware_profile               (hardware_profiles.json)

Modules:

- `model_shape`       parameters and operations of a dense transformer, from its config.json or a table
- `model_defaults`    values of fields that a config.json does not have, and names of fields
- `model_support`     which models the trainer computes exactly, from their config.json
- `engine_support`    which models vLLM computes as the trainer does, from their config.json
- `reference_model`   which model folders can be the teacher or the reference of a job
- `layout`            how a training step is distributed over ranks and memory
- `memory`            bytes of a trainer rank and of an engine
- `hardware_profile`  memory, arithmetic and links of a device, with sources
- `adapter_slots`     adapters that an engine holds at the same time
- `rollout_processes` processes that run rollouts: number and memory
- `fit`               whether a job fits, and the field to change if it does not
"""
