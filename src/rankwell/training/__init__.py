"""Fitting rankers: losses, lists, the one training loop, stages and recipes."""
