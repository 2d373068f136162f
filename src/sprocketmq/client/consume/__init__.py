"""Consuming: push and pull consumers, group membership, rebalance, offsets, give-backs."""
