"""GRPO-RoC: penalties, resample-on-correct, advantages, loss. Pure; only `loss` imports torch."""
