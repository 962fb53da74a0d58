"""Measures, significance, comparison tables and checks of runs. Everything here works without torch."""

from rankwell.evaluation import measures as measures  # registers them
