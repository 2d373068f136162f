"""The page that Prometheus scrapes: its metrics, and the address that serves it."""
