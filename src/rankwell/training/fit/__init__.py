"""Fitting a whole search system: a ladder of rungs, climbed while the time lasts."""
