"""Transactions: messages that consumers receive once their producer has committed them (docs/internals/transactions.md)."""
