"""The rollout simulator: the scheduler and the agent loop's timing against engines that are modelled from measurements.

    cli.simulate, bench.rollout
      |
      v
    settings --> workload    trajectories: drawn from statistics, or those of a job's Parquet files
      |            |
      v            v
    run ---------------> engine <---- hardware    seconds per decode step, from hardware.json or a fit
      |  inference.scheduler and inference.policies: the code of the rollouts
      v
    bound, picture    the lower bound of the makespan, and an SVG of the engines over time

Modules:

- `settings`  the file that `rstar2 simulate` reads
- `workload`  simulated trajectories
- `hardware`  the cost of decoding and prefill of one engine, and its fit
- `engine`    one engine over time: batches, KV cache, preemption
- `run`       the event loop of a simulation
- `bound`     a lower bound of the makespan
- `makespan`  that bound for trajectories that engines have sampled
- `picture`   the engines over time as SVG
"""
