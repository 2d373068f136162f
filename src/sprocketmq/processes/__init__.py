"""The servers of a cluster as child processes of one: what they are called, and their supervision."""
