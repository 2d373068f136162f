"""The servers of a cluster as child processes: their names and their supervision."""
