"""What a broker counts, and how it is shown: counters on the hot paths, and the page that Prometheus scrapes."""
