"""The wire format: commands, bodies, properties and records."""
