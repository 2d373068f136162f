"""The commit log: its files, appending to it, reading it record by record, and what may leave it."""
