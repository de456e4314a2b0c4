"""The plan of a job before anything starts: memory, time of a step and its parts, traffic, judge, agent, storage.

    cli.plan
      |
      v
    job_plan ----> step_time ----> rollout_time ----> simulation       seconds of the rollouts of a step
      |               |
      |               `----> trainer.batching, capacity.model_shape    micro-batches and operations of an update
      |----> split                                                     the best division of the GPUs
      `----> capacity.fit                                              memory, and the field to change

Modules:

- `job_plan`      `plan_job`: the plan of a manifest, as rows with their arithmetic
- `stage_rows`    the rows of one stage
- `agent_rows`    the pods and programs of an agent
- `step_time`     seconds of an update, of the transfer of weights and of a checkpoint
- `rollout_time`  seconds of the rollouts, by the simulator with the scheduler of the rollouts
- `split`         the best division of a job's GPUs between trainer and engines
- `shared_device` one device for trainer and engine: memory, host copies, and the cost of their turns
- `measured`      the figures of a run on this machine, as inputs of a plan
- `row`           one figure with its unit and its arithmetic
"""
