"""Training: one update, optimizer, schedule, checkpoints, logs, evaluation, and the pre-training loop."""
