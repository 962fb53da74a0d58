"""The cross-encoder: encoder, attention rules, heads and checkpoints. Needs torch (``rankwell[models]``)."""
