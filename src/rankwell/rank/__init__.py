"""Scoring: engines, the ranker, re-ranking of runs."""
