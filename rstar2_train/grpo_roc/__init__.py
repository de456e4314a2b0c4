"""GRPO-RoC: penalties, Resample-on-Correct, advantages and loss. Pure; only `loss` imports torch.

rollout.scoring ------> penalties    p_err, p_format of a trajectory           eqs. 4, 5
orchestrator.selection -> resample   which rollouts of a group train           paper section 2.2.3
                       -> advantage  advantages of the kept rollouts           eq. 7
trainer.batching -------> advantage  weight of a token in the update           eq. 6
trainer.step -----------> loss       clipped objective of a micro-batch        eq. 6
trainer.trainer_group --> gap        quantiles of |log p_trainer - log p_engine|
"""
