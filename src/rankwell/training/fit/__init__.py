"""Fitting a whole search system: steps of growing cost, tried while the time lasts."""
