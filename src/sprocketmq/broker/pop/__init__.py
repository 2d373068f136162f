"""POP: the broker tracks each message that a group has received and not acknowledged (docs/internals/pulls.md#pops)."""
