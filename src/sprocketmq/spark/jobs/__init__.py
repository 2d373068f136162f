"""Whole jobs on Spark: each is one function that takes a session and returns a summary. ``sprocketmq pipeline`` runs them from a shell."""
