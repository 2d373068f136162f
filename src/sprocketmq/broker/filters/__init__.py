"""Filters on message properties: the SQL92 expressions of consumers, and the messages that they let through (docs/internals/filters.md)."""
