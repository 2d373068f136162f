"""A ready Spark session: Java, fast start, worker processes."""
