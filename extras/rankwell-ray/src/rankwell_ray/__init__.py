"""rankwell's commands by many processes, on one machine or on a cluster, through Ray."""
