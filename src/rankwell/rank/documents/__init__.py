"""Ranking documents by their windows."""
