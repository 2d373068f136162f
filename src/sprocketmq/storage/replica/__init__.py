"""A store that follows a master: raw bytes of its log, queues and index derived from them, cutting back, and epochs."""
