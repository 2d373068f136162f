"""The counters of a broker and their exposition to Prometheus."""
