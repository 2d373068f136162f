"""Sending: the producer, batching, encoding, and retries within one time budget."""
