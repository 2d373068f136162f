"""Consume queues and batch queues: their files, the table of all queues, reads by offset and time."""
