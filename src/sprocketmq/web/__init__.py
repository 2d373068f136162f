"""The dashboard: a web application over the clients, so that it serves SprocketMQ's and Apache's clusters (docs/guide/dashboard.md)."""
