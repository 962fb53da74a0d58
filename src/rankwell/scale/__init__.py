"""Beyond one process: the same work on the cores of a machine, or on many machines, through Ray."""
