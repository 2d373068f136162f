"""What a broker counts, and how it is written for Prometheus."""
