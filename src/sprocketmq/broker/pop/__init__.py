"""POP: the broker keeps, message by message, what a group has been given and has not acknowledged (docs/internals/pulls.md#pops)."""
