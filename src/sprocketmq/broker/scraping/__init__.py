"""The page that Prometheus scrapes: what it shows of a broker, and the address that serves it."""
