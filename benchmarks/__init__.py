"""Benchmarks of SprocketMQ: ``python -m benchmarks`` runs them all, ``python -m benchmarks.load.NAME`` one."""
