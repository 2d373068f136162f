"""Transactions: messages that consumers get when their producer has committed them (docs/internals/transactions.md)."""
