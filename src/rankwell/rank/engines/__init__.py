"""Engines: from laid-out sequences to logits, one module a backend."""
