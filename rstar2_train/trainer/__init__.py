"""The trainer: one policy and its optimiser, sharded over ranks with FSDP2, on Ray.

    orchestrator.trainer_session          (no torch in this process)
      |
      v
    trainer_group   batching: rows, micro-batches per rank; metrics of all ranks
      |
      v
    actors ----- Ray ----->  rank         one process per rank
      |                       |-- model, device        the sharded policy
    ray_runtime               |-- step, logprobs       forward and backward of a micro-batch (grpo_roc.loss)
                              |-- optimizer            clip and AdamW
                              |-- sharded_state        the rank's part of a checkpoint
                              |-- sleeping_memory      the rank's memory on the host, while an engine uses the device
                              '-- export               the policy as a Hugging Face folder

Modules without torch, also used by the orchestrator: `types`, `checkpoint` (checkpoint folders), `lr_schedule`,
`batching`, `update_metrics`.
"""
