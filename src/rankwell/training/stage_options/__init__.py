"""What recipes may say about each stage. Nothing here imports torch, so a mistake is reported at once."""
