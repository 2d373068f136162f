"""Replication: roles, the stream of log bytes between master and slave, metadata, promotion."""
