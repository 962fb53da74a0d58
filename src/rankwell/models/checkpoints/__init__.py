"""Checkpoints: folders that are read, written, named, described, quantised and exported."""
