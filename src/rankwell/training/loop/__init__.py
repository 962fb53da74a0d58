"""The training loop, and what it is made of: tasks, losses, optimiser, log, resuming, validation."""
