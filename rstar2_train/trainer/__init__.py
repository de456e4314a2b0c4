"""Training: model, sharding, log-probabilities, optimiser step, checkpoints. The drivers use `group.TrainerGroup`."""
