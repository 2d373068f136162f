"""Connections, servers, event loops and background tasks."""
