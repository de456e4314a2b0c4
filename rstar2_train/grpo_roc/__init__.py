"""GRPO-RoC: penalties, Resample-on-Correct, objectives and the loss. Pure; only `loss` imports torch.

rollout.scoring ------> penalties    p_err, p_format of a trajectory           eqs. 4, 5
orchestrator.selection -> resample   which rollouts of a group train           paper section 2.2.3
                       -> objectives advantages of the kept rollouts           eq. 7
trainer.step -----------> loss       correction, metrics of a micro-batch
                          -> objectives  terms and weights of its tokens       eq. 6
trainer.trainer_group --> gap        quantiles of |log p_trainer - log p_engine|

`objectives` share `tokens` (input and result), `surrogate` (the clip) and `advantage`.
"""
