"""SQL92 conditions of consumers on the properties of messages (docs/internals/pulls.md#conditions)."""
